-- SHA-256 (FIPS 180-4) of short texts: about 4 us for a key under LuaJIT's compiler, 30 us without it.

local band, bxor, bnot, ror, rshift, tobit, tohex =
  bit.band, bit.bxor, bit.bnot, bit.ror, bit.rshift, bit.tobit, bit.tohex
local byte, char, rep = string.byte, string.char, string.rep

local function fraction(x)
  return tobit(math.floor((x - math.floor(x)) * 4294967296))
end

-- Constants of the rounds and of the start: fractions of the roots of the first 64 (8) primes.
local ROUNDS, START = {}, {}
do
  local primes, candidate = {}, 2
  while #primes < 64 do
    local prime = true
    for _, divisor in ipairs(primes) do
      if candidate % divisor == 0 then prime = false break end
    end
    if prime then
      primes[#primes + 1] = candidate
      ROUNDS[#primes - 1] = fraction(candidate ^ (1 / 3))
      if #primes <= 8 then START[#primes] = fraction(candidate ^ (1 / 2)) end
    end
    candidate = candidate + 1
  end
end

local words = {}  -- the message schedule, used again for every block

local function schedule(text, at)
  for i = 0, 15 do
    local a, b, c, d = byte(text, at + i * 4, at + i * 4 + 3)
    words[i] = tobit(a * 16777216 + b * 65536 + c * 256 + d)
  end
  for i = 16, 63 do
    local x, y = words[i - 15], words[i - 2]
    words[i] = tobit(
      bxor(ror(x, 7), ror(x, 18), rshift(x, 3)) + words[i - 16]
      + bxor(ror(y, 17), ror(y, 19), rshift(y, 10)) + words[i - 7])
  end
end

function sha256(text)
  local bits = #text * 8
  local padded = text .. "\128" .. rep("\0", (55 - #text) % 64) .. "\0\0\0\0"
    .. char(rshift(bits, 24) % 256, rshift(bits, 16) % 256, rshift(bits, 8) % 256, bits % 256)
  local h1, h2, h3, h4 = START[1], START[2], START[3], START[4]
  local h5, h6, h7, h8 = START[5], START[6], START[7], START[8]
  for at = 1, #padded, 64 do
    schedule(padded, at)
    local a, b, c, d, e, f, g, h = h1, h2, h3, h4, h5, h6, h7, h8
    for i = 0, 63 do
      local t = h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, f), band(bnot(e), g))
        + ROUNDS[i] + words[i]
      local s = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, b), band(a, c), band(b, c))
      a, b, c, d, e, f, g, h = tobit(t + s), a, b, c, tobit(d + t), e, f, g
    end
    h1, h2, h3, h4 = tobit(h1 + a), tobit(h2 + b), tobit(h3 + c), tobit(h4 + d)
    h5, h6, h7, h8 = tobit(h5 + e), tobit(h6 + f), tobit(h7 + g), tobit(h8 + h)
  end
  return tohex(h1) .. tohex(h2) .. tohex(h3) .. tohex(h4)
    .. tohex(h5) .. tohex(h6) .. tohex(h7) .. tohex(h8)
end
