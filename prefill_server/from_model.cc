// Apart from server.cc, so that who brings an executor of its own links none of ours.
#include <memory>
#include <string>
#include <utility>

#include "common/model/model.h"
#include "prefill_server/server.h"

namespace smartgen::prefill_server {

absl::StatusOr<std::unique_ptr<PrefillServer>> PrefillServer::FromModel(const Options& options) {
  RETURN_IF_ERROR(options.Check());
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(options.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model, model::Model::Open(path));
  executor::ExecutorOptions executor_options;
  ASSIGN_OR_RETURN(executor_options.compute, executor::ParseComputeType(options.compute));
  executor_options.threads = options.threads;
  executor_options.max_prefill_tokens = options.max_prefill_tokens;
  executor_options.max_decode_batch = 1;
  Parts parts;
  ASSIGN_OR_RETURN(parts.executor, executor::CreateCpuExecutor(*model, executor_options));
  parts.model_name = model->config().name;
  parts.model_fingerprint = model->fingerprint();
  return Start(options, std::move(parts));
}

}  // namespace smartgen::prefill_server
