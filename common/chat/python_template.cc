#include "common/chat/python_template.h"

#include <pybind11/embed.h>

#include <utility>

#include "common/base/log.h"
#include "common/chat/python_source.h"
#include "common/chat/watchdog.h"
#include "common/tokenizer/tokenizer.h"

#if defined(__SANITIZE_ADDRESS__)
// The interpreter is never finalised, so what it holds at exit is no leak of ours.
extern "C" const char* __lsan_default_suppressions() { return "leak:libpython\nleak:_PyObject\n"; }
#endif

namespace smartgen::chat {
namespace {

namespace py = pybind11;

class Interpreter {
 public:
  // The process's only one. An error is kept: a start that failed is not tried again.
  static absl::StatusOr<Interpreter*> Get() {
    static const absl::StatusOr<Interpreter*> instance = Start();
    return instance;
  }

  // Calls `function` of the module under the time limit. REQUIRES the GIL. Returns the value for
  // "ok".
  template <typename... Args>
  absl::StatusOr<py::object> Call(const char* function, base::Duration limit, Args&&... args);

 private:
  static absl::StatusOr<Interpreter*> Start();
  static absl::Status Initialize();
  absl::Status LoadModule();

  py::dict module_;
  py::object time_is_up_;
  std::unique_ptr<Watchdog> watchdog_;
};

absl::Status Interpreter::Initialize() {
  // Isolated: no PYTHON* variables, no user's site-packages, no signal handlers. The program's name
  // leads to the library and to the packages that belong to it.
  PyPreConfig pre;
  PyPreConfig_InitIsolatedConfig(&pre);
  pre.utf8_mode = 1;
  PyStatus status = Py_PreInitialize(&pre);
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.install_signal_handlers = 0;
  config.write_bytecode = 0;
  if (!PyStatus_Exception(status)) {
    status = PyConfig_SetBytesString(&config, &config.program_name, SMARTGEN_PYTHON);
  }
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (!PyStatus_Exception(status)) return absl::OkStatus();
  return base::Internal("starting the embedded Python ({}): {}", SMARTGEN_PYTHON,
                        status.err_msg == nullptr ? "exit" : status.err_msg);
}

absl::Status Interpreter::LoadModule() {
  try {
    module_ = py::dict();
    module_["__builtins__"] = py::module_::import("builtins");
    module_["__name__"] = "smartgen_chat";
    py::exec(kPythonSource, module_);
    time_is_up_ = module_["TimeIsUp"];
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return base::FailedPrecondition(
        "the embedded Python ({}) cannot run chat templates: {}; it needs the package jinja2 "
        "(Debian: python3-jinja2)",
        SMARTGEN_PYTHON, error.what());
  }
}

absl::StatusOr<Interpreter*> Interpreter::Start() {
  RETURN_IF_ERROR(Initialize());
  auto interpreter = std::make_unique<Interpreter>();
  const absl::Status loaded = interpreter->LoadModule();
  Interpreter* const result = interpreter.release();
  PyEval_SaveThread();  // renders take the GIL when they need it
  RETURN_IF_ERROR(loaded);
  result->watchdog_ = std::make_unique<Watchdog>(
      [](const std::function<void()>& run) {
        const PyGILState_STATE gil = PyGILState_Ensure();
        run();
        PyGILState_Release(gil);
      },
      [result](uint64_t thread) {
        PyThreadState_SetAsyncExc(static_cast<unsigned long>(thread), result->time_is_up_.ptr());
      });
  return result;
}

template <typename... Args>
absl::StatusOr<py::object> Interpreter::Call(const char* function, base::Duration limit,
                                             Args&&... args) {
  const unsigned long thread = PyThread_get_thread_ident();
  const uint64_t watched = watchdog_->Start(limit, thread);
  absl::Status status;
  py::object value;
  try {
    const py::tuple result = module_[function](std::forward<Args>(args)...);
    const auto kind = result[0].cast<std::string>();
    value = result[1];
    if (kind != "ok") {
      const auto message = value.cast<std::string>();
      status = kind == "limit" ? base::ResourceExhausted("{}", message)
                               : base::InvalidArgument("{}", message);
    }
  } catch (const py::error_already_set& error) {
    status = error.matches(time_is_up_)
                 ? base::DeadlineExceeded("chat template: not finished after {:.1f} s",
                                          base::ToSeconds(limit))
                 : base::Internal("chat template: {}", error.what());
  } catch (const std::exception& error) {
    status = base::Internal("chat template: {}", error.what());
  }
  watchdog_->Stop(watched);
  // It may have fired in the last moment; the next call on this thread must not get that.
  PyThreadState_SetAsyncExc(thread, nullptr);
  if (!status.ok()) return status;
  return value;
}

class EmbeddedTemplate final : public PythonTemplate {
 public:
  EmbeddedTemplate(Interpreter* interpreter, py::object compiled, base::Duration limit)
      : interpreter_(interpreter), compiled_(std::move(compiled)), limit_(limit) {}
  ~EmbeddedTemplate() override {
    const py::gil_scoped_acquire gil;
    compiled_.release().dec_ref();
  }

  absl::StatusOr<std::string> Render(const std::string& variables,
                                     int64_t local_seconds) const override {
    const py::gil_scoped_acquire gil;
    ASSIGN_OR_RETURN(const py::object text,
                     interpreter_->Call("render", limit_, compiled_, variables, local_seconds));
    return std::string(py::reinterpret_borrow<py::bytes>(text));
  }

 private:
  Interpreter* const interpreter_;
  py::object compiled_;
  const base::Duration limit_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PythonTemplate>> PythonTemplate::Compile(const std::string& source,
                                                                        base::Duration limit) {
  if (source.size() > kMaxTemplateSource) {
    return base::InvalidArgument("chat template: {} bytes, want at most {}", source.size(),
                                 kMaxTemplateSource);
  }
  if (!tokenizer::IsValidUtf8(source)) {
    return base::InvalidArgument("chat template: not valid UTF-8");
  }
  ASSIGN_OR_RETURN(Interpreter* const interpreter, Interpreter::Get());
  const py::gil_scoped_acquire gil;
  ASSIGN_OR_RETURN(py::object compiled, interpreter->Call("compile", limit, source));
  return std::make_unique<EmbeddedTemplate>(interpreter, std::move(compiled), limit);
}

}  // namespace smartgen::chat
