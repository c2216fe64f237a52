#include "common/chat/python_source.h"

namespace smartgen::chat {

const char kPythonSource[] = R"PYTHON(
import datetime
import functools
import json
import re
import threading

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox

# One string, and the whole output.
MAX_TEXT = 16 << 20
# Everything over 1 MiB that one render makes, taken together.
MAX_TOTAL = 2 << 30
MAX_INT_BITS = 1 << 20
MAX_INDENT = 1000


class LimitReached(BaseException):
    """Beyond what a template may use. No `except Exception` catches it."""


class TimeIsUp(BaseException):
    """Raised from outside, by the watchdog."""


class Raised(jinja2.exceptions.TemplateError):
    """By the template's own raise_exception."""


state = threading.local()


def charge(size):
    if size > MAX_TEXT:
        raise LimitReached(f"a value of {size} bytes; at most {MAX_TEXT} are allowed")
    if size > 1 << 20:
        state.total = getattr(state, "total", 0) + size
        if state.total > MAX_TOTAL:
            raise LimitReached(f"values of {state.total} bytes together; "
                               f"at most {MAX_TOTAL} are allowed")


def join_bounded(parts):
    kept = []
    total = 0
    for part in parts:
        total += len(part)
        if total > MAX_TEXT:
            raise LimitReached(f"output of more than {MAX_TEXT} characters")
        kept.append(part)
    charge(total)
    return "".join(kept)


def check_multiply(left, right):
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitReached("an integer that is too long")
        return
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int):
            if isinstance(sequence, str):
                charge(len(sequence) * max(count, 0))
            elif isinstance(sequence, (list, tuple)):
                charge(8 * len(sequence) * max(count, 0))


def check_power(left, right):
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        if left.bit_length() * right > MAX_INT_BITS:
            raise LimitReached("an integer that is too long")


def check_format(text):
    # Widths come from the format, or through * and nested braces from the arguments.
    if re.search(r"\d{7}|%[^%a-zA-Z]*\*|\{[^{}]*\{", text):
        raise LimitReached("a format with a width that is too large or computed")


def check_binop(operator, left, right):
    if operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            charge(len(left) + len(right))
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            charge(8 * (len(left) + len(right)))
    elif operator == "*":
        check_multiply(left, right)
    elif operator == "**":
        check_power(left, right)
    elif isinstance(left, str):
        check_format(left)


def check_replace(text, old, new):
    charge(len(text) + text.count(old) * len(new))


def check_join(separator, parts):
    charge(sum(len(part) + len(separator) for part in parts if isinstance(part, str)))


def check_method(text, name, args, kwargs):
    if name in ("center", "ljust", "rjust", "zfill"):
        if args and isinstance(args[0], int):
            charge(args[0])
    elif name == "expandtabs":
        size = args[0] if args else kwargs.get("tabsize", 8)
        if isinstance(size, int):
            charge(len(text) + text.count("\t") * max(size, 0))
    elif name == "replace":
        if len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            check_replace(text, args[0], args[1])
    elif name == "join":
        if args and isinstance(args[0], (list, tuple)):
            check_join(text, args[0])
    elif name in ("format", "format_map"):
        check_format(text)
    elif name == "translate":
        table = args[0] if args else None
        if isinstance(table, dict):
            longest = max((len(v) for v in table.values() if isinstance(v, str)), default=1)
            charge(len(text) * longest)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote; for a prompt it means nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(join_bounded)

    def call_binop(self, context, operator, left, right):
        check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context, __obj, *args, **kwargs):
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            check_method(owner, getattr(method, "__name__", ""), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    if (indent if isinstance(indent, int) else len(indent or "")) > MAX_INDENT:
        raise LimitReached("an indent that is too large")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)
    charge(len(text))
    return text


def raise_exception(message):
    raise Raised(message)


def strftime_now(pattern):
    check_format(pattern)
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=state.now)
    return moment.strftime(pattern)


def guarded(function, check):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        args = list(args)
        check(args, kwargs)
        return function(*args, **kwargs)
    return wrapper


def filter_center(args, kwargs):
    check_method("", "center", args[1:2] or [kwargs.get("width")], {})


def filter_indent(args, kwargs):
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    width = width if isinstance(width, int) else len(str(width))
    text = str(args[0])
    charge(len(text) + (text.count("\n") + 1) * max(width, 0))


def filter_replace(args, kwargs):
    # The first is the evaluation context.
    if len(args) > 3:
        check_replace(str(args[1]), str(args[2]), str(args[3]))


def filter_format(args, kwargs):
    check_format(str(args[0]))


def filter_join(args, kwargs):
    separator = args[2] if len(args) > 2 else kwargs.get("d", "")
    args[1] = list(args[1])
    charge(len(args[1]) * len(str(separator)))


def filter_batch(args, kwargs):
    for count in args[1:2] or [kwargs.get("linecount")]:
        if isinstance(count, int):
            charge(8 * count)


def bounded_str_join(parts):
    return join_bounded(map(str, parts))


# `~` compiles to this function.
jinja2.runtime.str_join = bounded_str_join


def make_environment():
    environment = Environment(trim_blocks=True, lstrip_blocks=True,
                              extensions=[Generation, jinja2.ext.loopcontrols])
    checks = {"center": filter_center, "indent": filter_indent, "replace": filter_replace,
              "format": filter_format, "join": filter_join, "batch": filter_batch}
    for name, check in checks.items():
        environment.filters[name] = guarded(environment.filters[name], check)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


environment = make_environment()


def encode(text):
    return text.encode("utf-8", "replace")


def template_line(template, error):
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return f" (line {line} of the chat template)" if line else ""


def describe(error, where):
    name = type(error).__name__
    if isinstance(error, Raised):
        return ("error", encode(str(error)))
    if isinstance(error, LimitReached):
        return ("limit", encode(f"chat template: {error}"))
    if isinstance(error, MemoryError):
        return ("limit", b"chat template: out of memory")
    return ("error", encode(f"{name}: {error}{where}"))


def compile(source):
    state.total = 0
    try:
        return ("ok", environment.from_string(source))
    except jinja2.exceptions.TemplateSyntaxError as error:
        return ("error", encode(f"{type(error).__name__}: {error.message} "
                                f"(line {error.lineno} of the chat template)"))
    except (Exception, LimitReached) as error:
        return describe(error, "")


def render(template, variables, local_seconds):
    state.total = 0
    state.now = local_seconds
    try:
        context = template.new_context(json.loads(variables))
        return ("ok", encode(join_bounded(template.root_render_func(context))))
    except (Exception, LimitReached) as error:
        return describe(error, template_line(template, error))
)PYTHON";

}  // namespace smartgen::chat
