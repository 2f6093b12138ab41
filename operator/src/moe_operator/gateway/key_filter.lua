-- Who is asking? The lines above this one say:
--   TABLE    rows of WIDTH characters, ordered: SHA-256 in hex, expiry in Unix seconds (0 = never), counter
--            slot, key id, each padded with spaces. It is searched as it stands, so loading 10,000 keys
--            takes a worker no longer than loading one.
--   SLOTS    whether keys have counters of requests in flight
--   FORWARD  whether the engine gets to see the Authorization header
-- The key's hash is compared, not the key: how long that takes says nothing about any key.

local LONGEST = 512  -- characters; a longer key is not one of ours and not worth hashing
local CHALLENGE = 'Bearer realm="moe-gateway"'

local MISSING = {"missing_api_key",
  "You did not provide an API key. Send it in the header Authorization: Bearer YOUR_KEY."}
local WRONG = {"invalid_api_key", "Incorrect API key provided."}
local EXPIRED = {"expired_api_key", "This API key has expired."}

local function key_in(headers)
  local value = headers:get("authorization")
  if value then
    return value:match("^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+)$")
  end
  return headers:get("x-api-key")
end

local function row_of(hash)
  local low, high = 0, #TABLE / WIDTH - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local at = middle * WIDTH
    local seen = TABLE:sub(at + 1, at + 64)
    if seen == hash then return TABLE:sub(at + 65, at + WIDTH) end
    if seen < hash then low = middle + 1 else high = middle - 1 end
  end
end

local function refuse(handle, reason)
  handle:streamInfo():dynamicMetadata():set(CLIENT, "refused", reason[1])
  handle:respond(
    {[":status"] = "401", ["content-type"] = "application/json", ["www-authenticate"] = CHALLENGE},
    string.format('{"error": {"message": "%s", "type": "invalid_request_error", "param": null, "code": "%s"}}',
      reason[2], reason[1]))
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local key = key_in(headers)
  if not key or key == "" then return refuse(handle, MISSING) end
  local row = #key <= LONGEST and row_of(sha256(key))
  if not row then return refuse(handle, WRONG) end
  local expires, slot, id = row:match("^ (%d+) +(%d+) +(%S+)")
  expires = tonumber(expires)
  if expires > 0 and os.time() >= expires then return refuse(handle, EXPIRED) end
  headers:replace(KEY_ID, id)
  if SLOTS then headers:replace(SLOT, slot) end
  if not FORWARD then
    headers:remove("authorization")
    headers:remove("x-api-key")
  end
  handle:streamInfo():dynamicMetadata():set(CLIENT, "key", id)
  handle:clearRouteCache()
end
