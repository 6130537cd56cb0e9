-- groups: equal messages in quarantine, counted, the largest groups first, as one text; changes nothing.
-- KEYS[1] quarantine zset
-- KEYS[2] groups     prefix
-- ARGV[1] messages   prefix of the keys of messages
-- ARGV[2] kind       queue | fingerprint
-- ARGV[3] most       groups at most
-- ARGV[4] skip       so many larger ones
-- RETURNS OK, messages in quarantine, groups there are, a JSON array in a line for each: its labels, messages,
--   its key, relapsed ones, the newest, when that came (ms), when the one that came first was first seen (ms)
-- JOURNALS nothing
local counts, rows = KEYS[2] .. ':' .. ARGV[2], {}
-- What another client wrote need be no number of JSON's.
local function number(text) return text and #text < 16 and text:find('^%d+$') and text or '0' end
local flat = redis.call('ZREVRANGE', counts, ARGV[4], ARGV[4] + ARGV[3] - 1, 'WITHSCORES')
for i = 1, #flat, 2 do
  local key = KEYS[2] .. ':' .. redis.sha1hex(ARGV[2] .. flat[i]) -- as _groups.lua does
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local oldest = redis.call('ZRANGE', key, 0, 0)
  local seen = oldest[1] and redis.call('HGET', ARGV[1] .. oldest[1], 'first_seen')
  local relapsed = redis.call('SCARD', key .. ':relapsed')
  rows[#rows + 1] = table.concat({'[' .. flat[i], number(flat[i + 1]), '"' .. key:sub(-40) .. '"', relapsed,
    cjson.encode(newest[1] or ''), number(newest[2]), number(seen ~= '' and seen or newest[2]) .. ']'}, ',')
end
return {'OK', redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', counts), table.concat(rows, '\n')}
