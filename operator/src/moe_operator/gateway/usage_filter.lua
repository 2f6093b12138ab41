-- How many tokens did the answer take? Engines say so in the member "usage": at the end of a JSON body, and
-- in the last event of a stream whose client asked for it (stream_options.include_usage) or whose engine
-- always sends it. Only the end of an answer is kept, and only for as long as the answer lasts; of what is
-- in it nothing but the numbers is passed on. A quote inside a string of JSON has a backslash before it, so
-- no prompt or answer can be taken for the member. Events are counted, too: they stand for the tokens of a
-- stream that its client left before the end.

local KEEP = 8192  -- characters; enough for the last event or the last members
local TELL = 16    -- events between two notes of their number

local NAMES = {
  prompt = {"prompt_tokens", "input_tokens"},
  completion = {"completion_tokens", "output_tokens"},
  cached = {"cached_tokens"},
}

local function number_in(text, names)
  for _, name in ipairs(names) do
    local found = text:match('"' .. name .. '"%s*:%s*(%d+)')
    if found then return tonumber(found) end
  end
end

local function usage_in(tail)
  local last
  for found in tail:gmatch('"usage"%s*:%s*(%b{})') do last = found end
  return last
end

local function events_in(text)
  local seen, at = 0, 1
  while true do
    at = text:find("data: {", at, true)
    if not at then return seen end
    seen, at = seen + 1, at + 7
  end
end

local function note(handle, field, number)  -- Envoy's objects do not outlive a pause of the script
  handle:streamInfo():dynamicMetadata():set(USAGE, field, number)
end

function envoy_on_response(handle)
  local kind = handle:headers():get("content-type") or ""
  local stream = kind:find("text/event-stream", 1, true) == 1
  if not stream and kind:find("application/json", 1, true) ~= 1 then return end
  local tail, events, told = "", 0, 0
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    local skipped = stream and 0 or math.max(0, size - KEEP)
    if size > 0 then
      local text = chunk:getBytes(skipped, size - skipped)
      tail = (tail .. text):sub(-KEEP)
      if stream then
        events = events + events_in(text)
        if events - told >= TELL then
          told = events
          note(handle, "events", events)
        end
      end
    end
  end
  local usage = usage_in(tail)
  if not usage then
    if events > told then note(handle, "events", events) end
    return
  end
  for field, names in pairs(NAMES) do
    local tokens = number_in(usage, names)
    if tokens then note(handle, field, tokens) end
  end
end
