"""Gemini's generateContent API: https://ai.google.dev/api/generate-content"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentgym.endpoint.calls import (
    Answer,
    CallRefusedError,
    ChatCall,
    as_limit,
    as_list,
    as_object,
    as_stops,
    as_text,
    check_conversation,
)
from agentgym.endpoint.wire.fields import Fields, Notes, unseen_text
from agentgym.endpoint.wire.openai_chat import CONSTRAINED, arguments_of, check_tool_choice, read_function
from agentgym.types import Message, ToolCall, ToolResult, ToolSpec

FIELDS: Final = Fields(
    read=frozenset(("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")),
    fixed=frozenset(),
    refused={"cachedContent": "send the whole conversation as contents"},
    partly={
        "toolConfig": "the mode NONE, or certain functions",
        "contents": "the model's as the last one",
    },
)
"""Fields of the API."""
SETTINGS: Final = Fields(
    read=frozenset(("maxOutputTokens", "stopSequences", "candidateCount", "responseMimeType")),
    fixed=frozenset(
        ("temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty", "thinkingConfig")
    ),
    refused={"responseSchema": CONSTRAINED, "responseJsonSchema": CONSTRAINED},
    partly={"candidateCount": "above 1", "responseMimeType": "other than text/plain"},
)  # fmt: skip
"""Fields of ``generationConfig``."""
_MODES: Final = {"MODE_UNSPECIFIED": "auto", "AUTO": "auto", "VALIDATED": "auto", "ANY": "any", "NONE": "none"}
_STATUS: Final = {
    "unknown_session": "NOT_FOUND", "engine": "UNAVAILABLE", "limit": "PERMISSION_DENIED", "over": "PERMISSION_DENIED"
}  # fmt: skip
_PART = frozenset(("text", "thought", "thoughtSignature", "functionCall", "functionResponse"))
_NAMES = frozenset(
    ("inlineData", "fileData", "mimeType", "functionDeclarations", "parametersJsonSchema", "functionCallingConfig",
     "allowedFunctionNames", *_PART, *FIELDS.read, *FIELDS.refused, *SETTINGS.read, *SETTINGS.fixed, *SETTINGS.refused)
)  # fmt: skip


def parse(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request.

    Raises:
        CallRefusedError: a field is wrong or not supported; the message names it.
    """
    return _call(body)


def parse_count(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request for the number of its tokens; errors are those of :func:`parse`."""
    inner = body.get("generateContentRequest")
    return _call(body if inner is None else as_object(inner, "generateContentRequest"), is_counted=True)


def count_response(num_tokens: int) -> dict[str, Any]:
    """Return the answer to a request for the number of tokens."""
    return {"totalTokens": num_tokens}


def response(answer: Answer, model: str) -> dict[str, Any]:
    """Return an answer as a ``GenerateContentResponse``."""
    parts: list[dict[str, Any]] = [{"text": answer.thinking, "thought": True}] if answer.thinking else []
    parts += [{"text": answer.text}] if answer.text or not answer.calls else []
    parts += [
        {"functionCall": {"id": call.id, "name": call.name, "args": dict(call.arguments)}} for call in answer.calls
    ]
    reason = "MAX_TOKENS" if answer.is_cut and not answer.calls else "STOP"
    prompt, completion = answer.num_prompt_tokens, answer.num_completion_tokens
    return {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": reason}],
        "usageMetadata": {
            "promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": prompt + completion
        },
        "modelVersion": model,
        "responseId": answer.id,
    }  # fmt: skip


def events(answer: Answer, model: str) -> Iterator[str]:
    """Return an answer as the server-sent events of a stream, which is one event."""
    yield f"data: {json.dumps(response(answer, model), ensure_ascii=False)}\r\n\r\n"


def error(refused: CallRefusedError) -> dict[str, Any]:
    """Return an error in the API's format."""
    status = _STATUS.get(refused.reason, "INVALID_ARGUMENT")
    return {"error": {"code": refused.http_status, "message": str(refused), "status": status}}


# ------------------------------------------------------------------------------------------------------- requests


def _camel(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its known keys in camel case; the API takes both spellings."""
    names = {key: re.sub(r"_([a-z])", lambda found: found[1].upper(), key) for key in given}
    return {names[key] if names[key] in _NAMES else key: value for key, value in given.items()}


def _call(body: Mapping[str, Any], *, is_counted: bool = False) -> ChatCall:
    body = _camel(body)
    notes = FIELDS.checked(body)
    settings = _camel(as_object(body.get("generationConfig") or {}, "generationConfig"))
    of_settings = SETTINGS.checked(settings)
    notes.overridden += of_settings.overridden
    notes.ignored += [f"generationConfig.{name}" for name in of_settings.ignored]
    if (as_limit(settings.get("candidateCount"), "candidateCount") or 1) > 1:
        raise CallRefusedError("unsupported", "Unsupported: candidateCount above 1.", "generationConfig")
    if settings.get("responseMimeType") not in (None, "", "text/plain"):
        raise CallRefusedError(
            "unsupported", "Unsupported: responseMimeType other than text/plain.", "generationConfig"
        )
    _check_mode(as_object(body.get("toolConfig") or {}, "toolConfig"), notes)
    system = body.get("systemInstruction") or {"parts": []}
    text = system if isinstance(system, str) else _system(as_object(system, "systemInstruction"), notes)
    return ChatCall(
        messages=check_conversation(
            [*([Message("system", text)] if text else []), *_conversation(body.get("contents"), notes)],
            is_counted=is_counted,
        ),
        tools=_tools(body.get("tools"), notes),
        max_tokens=as_limit(settings.get("maxOutputTokens"), "maxOutputTokens"),
        stops=as_stops(settings.get("stopSequences"), "stopSequences"),
        overridden=tuple(notes.overridden),
        ignored=tuple(notes.ignored),
    )


def _check_mode(config: Mapping[str, Any], notes: Notes) -> None:
    calling = _camel(as_object(_camel(config).get("functionCallingConfig") or {}, "functionCallingConfig"))
    if calling.get("allowedFunctionNames"):
        raise CallRefusedError("unsupported", "Unsupported: allowedFunctionNames.", "toolConfig")
    mode = str(calling.get("mode") or "AUTO").upper()
    check_tool_choice(_MODES.get(mode, mode), notes)


def _parts(content: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
    parts = content.get("parts") or []
    rows = [parts] if isinstance(parts, Mapping) else as_list(parts, f"{what}.parts")
    return [_camel(as_object({"text": part} if isinstance(part, str) else part, f"{what}.parts[]")) for part in rows]


def _system(content: Mapping[str, Any], notes: Notes) -> str:
    return "".join(_said(part, notes, "systemInstruction.parts") for part in _parts(content, "systemInstruction"))


def _conversation(given: object, notes: Notes) -> list[Message]:
    """Convert the contents to messages. A result without an id answers the first open call with its name."""
    contents = [{"parts": [given]}] if isinstance(given, str) else as_list(given, "contents")
    found: list[Message] = []
    open_calls: list[ToolCall] = []
    for entry in contents:
        content = as_object(entry, "contents[]")
        role, parts = content.get("role") or "user", _parts(content, "contents[]")
        if role == "model":
            message = _assistant(parts, notes, len(found))
            open_calls += [call for call in message.calls if isinstance(call, ToolCall)]
            found.append(message)
        elif role in ("user", "function"):
            found += _user(parts, open_calls, notes)
        elif role == "system":
            found.append(Message("system", _system(content, notes)))
        else:
            raise CallRefusedError("invalid", f"Unknown role {role!r}; expected user, model or function.", "contents")
    return found


def _assistant(parts: list[dict[str, Any]], notes: Notes, number: int) -> Message:
    text, thinking = "", ""
    calls: list[ToolCall] = []
    for part in parts:
        if "functionCall" in part:
            call = as_object(part["functionCall"], "functionCall")
            name, args = as_text(call.get("name"), "functionCall.name"), arguments_of({"arguments": call.get("args")})
            id = str(call.get("id") or f"unnamed_{number}_{len(calls)}")
            calls.append(ToolCall(name, args, id))
        elif part.get("thought"):
            thinking += _said(part, notes, "contents[].parts")
        else:
            text += _said(part, notes, "contents[].parts")
    return Message("assistant", text, tuple(calls), thinking=thinking, answer=text)


def _user(parts: list[dict[str, Any]], open_calls: list[ToolCall], notes: Notes) -> list[Message]:
    found: list[Message] = []
    for part in parts:
        if "functionResponse" in part:
            given = _camel(as_object(part["functionResponse"], "functionResponse"))
            name, id = as_text(given.get("name"), "functionResponse.name"), str(given.get("id") or "")
            call = next((one for one in open_calls if (one.id == id if id else one.name == name)), None)
            if call is not None:
                open_calls.remove(call)
            text = _result(as_object(given.get("response") or {}, "functionResponse.response"))
            text += "".join(_said(more, notes, "functionResponse.parts") for more in _parts(given, "functionResponse"))
            found.append(Message("tool", text, result=ToolResult(text, name, call.id if call else id or name)))
        elif found and found[-1].role == "user":
            found[-1] = Message("user", found[-1].text + _said(part, notes, "contents[].parts"))
        else:
            found.append(Message("user", _said(part, notes, "contents[].parts")))
    return found


def _said(part: Mapping[str, Any], notes: Notes, what: str) -> str:
    """Return the text of a part, or the text that replaces an image or a file."""
    if "text" in part:
        notes.skips(part, _PART, f"{what}[].")
        return as_text(part["text"], f"{what}[].text")
    if "inlineData" in part or "fileData" in part:
        data = _camel(as_object(part.get("inlineData") or part.get("fileData"), f"{what}[]"))
        kind = str(data.get("mimeType") or "file").partition("/")[0]
        return str(unseen_text(kind if kind in ("image", "audio") else "file", notes, what))
    if not part.keys() - {"thought", "thoughtSignature"}:
        return ""
    raise CallRefusedError("unsupported", f"Unsupported: a part with {', '.join(sorted(part))}; text is.", what)


def _result(response: Mapping[str, Any]) -> str:
    """Return a function's response as text: that of its only key if this is ``output``, ``error`` or ``result``."""
    if len(response) == 1:
        ((key, value),) = response.items()
        if key in ("output", "error", "result") and isinstance(value, str):
            return value
    return json.dumps(dict(response), ensure_ascii=False)


def _tools(given: object, notes: Notes) -> tuple[ToolSpec, ...]:
    found = []
    for entry in as_list(given or [], "tools"):
        tool = _camel(as_object(entry, "tools[]"))
        notes.skips(tool, frozenset(("functionDeclarations",)), "tools[].")
        for one in as_list(tool.get("functionDeclarations") or [], "functionDeclarations"):
            function = _camel(as_object(one, "functionDeclarations[]"))
            if function.get("parametersJsonSchema"):
                found.append(read_function(function, "parametersJsonSchema"))
            else:
                found.append(read_function({**function, "parameters": _json_schema(function.get("parameters"))}))
    return tuple(found)


def _json_schema(schema: object) -> Any:
    """Return a schema of the API as JSON Schema, whose types are in lower case."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
    }
