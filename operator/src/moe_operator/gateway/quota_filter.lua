-- Keys that have used up their tokens wait. The line above this one says:
--   UNTIL  key id -> Unix milliseconds from which the key may ask again
-- An entry ends by itself, so a key is not locked out while nobody renews this list.

function envoy_on_request(handle)
  local id = handle:headers():get(KEY_ID)
  local ends = id and UNTIL[id]
  if not ends then return end
  local left = ends - tonumber(handle:timestampString(EnvoyTimestampResolution.MILLISECOND))
  if left <= 0 then return end
  handle:streamInfo():dynamicMetadata():set(CLIENT, "refused", "tokens_per_minute_exceeded")
  handle:respond(
    {[":status"] = "429", ["content-type"] = "application/json",
     ["retry-after"] = string.format("%d", math.ceil(left / 1000))},
    '{"error": {"message": "This API key has used up its tokens per minute.", "type": "rate_limit_exceeded", '
      .. '"param": null, "code": "tokens_per_minute_exceeded"}}')
end
