"""Tests of tools/check_layering.py on small trees made for the purpose."""

import contextlib
import importlib.util
import io
import os
import tempfile
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SPEC = importlib.util.spec_from_file_location(
    "check_layering", os.path.join(_ROOT, "tools", "check_layering.py")
)
check_layering = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_layering)


class CheckLayeringTest(unittest.TestCase):
    def complaints(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            return check_layering.check_tree(root)[1]

    def assert_allowed(self, path, include):
        self.assertEqual(self.complaints({path: f"#include {include}\n"}), [])

    def assert_refused(self, path, include):
        found = self.complaints({path: f"#pragma once\n\n#include {include}\n"})
        self.assertEqual(len(found), 1, f"{path} with {include}")
        self.assertTrue(found[0].startswith(f"{path}:3: "), found[0])

    def test_includes_of_lower_folders_and_ones_own_are_allowed(self):
        self.assert_allowed("common/kv/pool.h", '"common/base/mutex.h"')
        self.assert_allowed("common/kv/pool.cc", '"common/kv/pool.h"')
        self.assert_allowed("common/executor/cpu/attention.cc", '"common/executor/executor.h"')
        self.assert_allowed("common/transfer/plan.cc", '"common/channel/channel.h"')
        self.assert_allowed("decode_server/main.cc", '"common/rpc/server.h"')
        self.assert_allowed("common/base/log.h", "<spdlog/spdlog.h>")

    def test_includes_of_higher_folders_are_refused(self):
        self.assert_refused("common/base/log.cc", '"common/kv/pool.h"')
        self.assert_refused("common/kv/pool.h", '"common/transfer/plan.h"')
        self.assert_refused("common/executor/executor.h", '"common/rpc/server.h"')
        self.assert_refused("common/rpc/server.cc", '"gateway/router.h"')

    def test_neighbours_that_must_not_know_each_other_are_refused(self):
        self.assert_refused("common/channel/tcp/tcp.cc", '"common/kv/pool.h"')
        self.assert_refused("common/transfer/plan.cc", '"common/model/model.h"')
        self.assert_refused("common/executor/executor.h", '"common/channel/channel.h"')
        self.assert_refused("common/config/config.cc", '"common/metrics/metrics.h"')
        self.assert_refused("gateway/main.cc", '"decode_server/service.h"')

    def test_the_product_never_includes_tests(self):
        self.assert_refused("common/kv/pool.cc", '"tests/common/kv/kv_test_util.h"')

    def test_grpc_lives_in_rpc_and_above_only(self):
        for header in ["<grpcpp/grpcpp.h>", '"proto/decode.grpc.pb.h"', '"common.pb.h"']:
            self.assert_refused("common/channel/channel.cc", header)
            self.assert_allowed("common/rpc/client.h", header)
            self.assert_allowed("prefill_server/service.h", header)

    def test_a_file_format_may_be_protobuf_in_transfer_but_not_in_its_headers(self):
        self.assert_allowed("common/transfer/profile.cc", '"common/transfer/profile.pb.h"')
        self.assert_refused("common/transfer/profile.h", '"common/transfer/profile.pb.h"')
        self.assert_refused("common/transfer/profile.cc", "<grpcpp/grpcpp.h>")

    def test_beast_lives_in_gateway_and_tools_only(self):
        self.assert_allowed("gateway/http.cc", "<boost/beast/http.hpp>")
        self.assert_allowed("tools/chat.cc", "<boost/beast/http.hpp>")
        self.assert_refused("common/rpc/client.cc", "<boost/beast/http.hpp>")

    def test_cuda_lives_behind_its_two_folders(self):
        self.assert_allowed("common/executor/cuda/kernels.cu", "<cuda_runtime.h>")
        self.assert_allowed("common/channel/nccl/nccl.cc", "<nccl.h>")
        self.assert_refused("common/executor/cpu/gemm.cc", "<cublasLt.h>")

    def test_prometheus_headers_stay_in_the_metrics_sources(self):
        self.assert_allowed("common/metrics/metrics.cc", "<prometheus/registry.h>")
        self.assert_refused("common/metrics/metrics.h", "<prometheus/registry.h>")
        self.assert_refused("gateway/main.cc", "<prometheus/registry.h>")

    def test_a_folder_that_the_table_lacks_is_refused(self):
        self.assert_refused("common/newcomer/x.cc", "<vector>")

    def test_the_line_and_every_violation_are_reported(self):
        found = self.complaints(
            {
                "common/kv/a.cc": '#include <vector>\n# include "common/rpc/x.h"\n',
                "common/kv/b.h": '#include "gateway/y.h"\n',
                "common/kv/c.h": '// #include "gateway/y.h"\n',
            }
        )
        places = [complaint.split(" ")[0] for complaint in found]
        self.assertEqual(places, ["common/kv/a.cc:2:", "common/kv/b.h:1:"])

    def test_the_exit_status_tells(self):
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
            os.makedirs(os.path.join(root, "common", "kv"))
            path = os.path.join(root, "common", "kv", "a.cc")
            with open(path, "w", encoding="utf-8") as file:
                file.write('#include "common/base/log.h"\n')
            self.assertEqual(check_layering.main(["check_layering.py", root]), 0)
            with open(path, "a", encoding="utf-8") as file:
                file.write('#include "common/rpc/server.h"\n')
            self.assertEqual(check_layering.main(["check_layering.py", root]), 1)

    def test_a_folder_without_sources_is_an_error(self):
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(check_layering.main(["check_layering.py", root]), 1)


if __name__ == "__main__":
    unittest.main()
