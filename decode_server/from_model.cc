// Apart from server.cc, so that who brings an executor of its own links none of ours.
#include <memory>
#include <string>
#include <utility>

#include "common/model/model.h"
#include "decode_server/server.h"

namespace smartgen::decode_server {

absl::StatusOr<std::unique_ptr<DecodeServer>> DecodeServer::FromModel(const Options& given) {
  RETURN_IF_ERROR(given.Check());
  Options options = given;
  // A GPU's executor shares out its memory by what the pool will hold; the CPU's takes what it
  // needs first, and the pool its share of the rest.
  if (options.backend.UsesCuda()) {
    ASSIGN_OR_RETURN(options.kv_bytes, options.PoolBytes());
  }
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(options.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model, model::Model::Open(path));
  executor::ExecutorOptions executor_options;
  ASSIGN_OR_RETURN(executor_options.compute, executor::ParseComputeType(options.compute));
  executor_options.threads = options.threads;
  executor_options.max_prefill_tokens = options.max_prefill_tokens;
  executor_options.max_decode_batch = options.max_batch;
  Parts parts;
  ASSIGN_OR_RETURN(parts.executor, executor::CreateExecutor(*model, executor_options,
                                                            options.backend, options.kv_bytes));
  ASSIGN_OR_RETURN(parts.hardware, executor::HardwareName(options.backend));
  parts.model_name = model->config().name;
  parts.model_fingerprint = model->fingerprint();
  return Start(options, std::move(parts));
}

}  // namespace smartgen::decode_server
