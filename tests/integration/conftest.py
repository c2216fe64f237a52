import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster  # noqa: E402


@pytest.fixture(scope="session")
def cluster():
    with Cluster() as c:
        yield c


@pytest.fixture(scope="session")
def client(cluster):
    import openai
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="unused", max_retries=0,
                       timeout=120) as c:
        yield c


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
