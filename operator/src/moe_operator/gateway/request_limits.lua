-- Judges one request by the numbers in its route's metadata; see request_limits.py.

local ANSWER = { max_tokens = true, max_completion_tokens = true, max_output_tokens = true, min_tokens = true }
local CHOICES = { n = true, best_of = true }
local WHITE = "^[ \t\r\n]*()"

local function refuse(handle, status, code, message)
  local body = string.format(
    '{"error": {"message": "%s", "type": "invalid_request_error", "param": null, "code": "%s"}}', message, code)
  handle:respond({ [":status"] = status, ["content-type"] = "application/json" }, body)
end

local function header_bytes(handle)
  local bytes = 0
  for name, value in pairs(handle:headers()) do
    bytes = bytes + #name + #value
  end
  return bytes
end

-- The position after the string that opens at `at`; nil when it does not end.
local function after_string(text, at)
  at = at + 1
  while true do
    local stop = text:find('["\\]', at)
    if not stop then return nil end
    if text:byte(stop) == 34 then return stop + 1 end
    at = stop + 2
  end
end

-- The position after the object or array that opens at `at`, and the bytes of data: URLs in it.
local function after_nested(text, at)
  local depth, data = 0, 0
  while true do
    local stop = text:find('["%[%]{}]', at)
    if not stop then return nil, data end
    local byte = text:byte(stop)
    if byte == 34 then
      at = after_string(text, stop)
      if not at then return nil, data end
      if text:find('^data:', stop + 1) then data = data + at - stop end
    else
      depth = depth + ((byte == 91 or byte == 123) and 1 or -1)
      at = stop + 1
      if depth == 0 then return at, data end
    end
  end
end

-- A limited member's value as a number; false for null; nil when it cannot be told.
local function number_of(value)
  if value == "null" then return false end
  if value:byte(1) == 34 then
    value = value:sub(2, -2):gsub("[%s_]", "") -- engines read "1_000" as 1000
  end
  return tonumber(value)
end

-- Reads the members at the top level. Returns (answer, choices, data bytes, position of the closing brace,
-- whether there is any member), or nil and what is wrong.
local function read(text)
  local answer, choices, data = false, false, 0
  if not text:find("^{", text:match(WHITE)) or text:find("\0", 1, true) then
    return nil, "The body must be one JSON object in UTF-8."
  end
  local at = text:match("^[ \t\r\n]*{[ \t\r\n]*()")
  if text:byte(at) == 125 then return answer, choices, data, at, false end
  while true do
    if text:byte(at) ~= 34 then return nil, "The body is not valid JSON." end
    local stop = after_string(text, at)
    if not stop then return nil, "The body is not valid JSON." end
    local key = text:sub(at + 1, stop - 2)
    if key:find("\\", 1, true) then return nil, "Names of members must not be escaped." end
    at = text:match("^[ \t\r\n]*:[ \t\r\n]*()", stop)
    if not at then return nil, "The body is not valid JSON." end
    local byte, from = text:byte(at), at
    if byte == 34 then
      at = after_string(text, from)
      if at and text:find("^data:", from + 1) then data = data + at - from end
    elseif byte == 91 or byte == 123 then
      local found
      at, found = after_nested(text, from)
      data = data + found
    else
      at = text:find("[,} \t\r\n]", from)
    end
    if not at then return nil, "The body is not valid JSON." end
    if ANSWER[key] or CHOICES[key] then
      local value = number_of(text:sub(from, at - 1))
      if value == nil then return nil, "Member " .. key .. " must be a number." end
      if value and ANSWER[key] then answer = math.max(answer or value, value) end
      if value and CHOICES[key] then choices = math.max(choices or value, value) end
    end
    at = text:match(WHITE, at)
    byte = text:byte(at)
    if byte == 125 then return answer, choices, data, at, true end
    if byte ~= 44 then return nil, "The body is not valid JSON." end
    at = text:match(WHITE, at + 1)
  end
end

local function over(handle, name, asked, limit)
  refuse(handle, "400", name .. "_exceeded",
    string.format("%s: the request asks for %.0f, this gateway allows %.0f.", name, asked, limit))
end

-- The route's numbers as a plain table: Envoy's own object does not outlive the wait for the body.
local function numbers_of(handle)
  local numbers = {}
  for name, value in pairs(handle:metadata()) do
    numbers[name] = value
  end
  return numbers
end

function envoy_on_request(handle)
  local limits = numbers_of(handle)
  if limits.max_header_bytes and header_bytes(handle) > limits.max_header_bytes then
    return refuse(handle, "431", "headers_too_large", "The request headers are larger than this gateway takes.")
  end
  if not limits.bytes_per_token then return end -- no limit needs the body, or the route answers by itself
  local body = handle:body()
  if not body then return end
  local text = body:getBytes(0, body:length())
  local answer, choices, data, brace, has_members = read(text)
  if answer == nil then return refuse(handle, "400", "invalid_body", choices) end

  if limits.max_output_tokens and answer and answer > limits.max_output_tokens then
    return over(handle, "max_output_tokens", answer, limits.max_output_tokens)
  end
  if limits.max_choices and choices and choices > limits.max_choices then
    return over(handle, "max_choices", choices, limits.max_choices)
  end
  local prompt = math.ceil((#text - data) / limits.bytes_per_token)
  if limits.max_context_tokens and prompt + (answer or 0) > limits.max_context_tokens then
    return refuse(handle, "400", "context_length_exceeded", string.format(
      "This request is estimated at %.0f tokens of prompt and asks for %.0f more; this gateway allows %.0f.",
      prompt, answer or 0, limits.max_context_tokens))
  end
  if limits.answer_member and not answer then
    local member = string.format('%s"%s":%.0f}', has_members and "," or "", limits.answer_member, limits.max_output_tokens)
    local length = body:setBytes(text:sub(1, brace - 1) .. member)
    handle:headers():replace("content-length", tostring(length))
  end
  if limits.long_tokens and prompt > limits.long_tokens then
    handle:headers():replace(limits.lane_header, limits.lane)
    handle:clearRouteCache()
  end
end
