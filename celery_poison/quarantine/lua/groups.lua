-- groups: equal messages in quarantine, counted, the largest groups first, as one text; changes nothing.
-- KEYS[1] quarantine zset
-- KEYS[2] groups     prefix
-- ARGV[1] messages   prefix of the keys of messages
-- ARGV[2] kind       queue | fingerprint
-- ARGV[3] most       groups at most
-- ARGV[4] skip       so many larger ones
-- RETURNS OK, messages in quarantine, groups there are, 1 while they are being put right, a JSON array of an array for each: its labels, messages,
--   relapsed ones, the newest, when that came (ms), when the one that came first was first seen (ms), its key
-- JOURNALS nothing
local counts, rows = KEYS[2] .. ':' .. ARGV[2], {}
local flat = redis.call('ZREVRANGE', counts, ARGV[4], ARGV[4] + ARGV[3] - 1, 'WITHSCORES')
for i = 1, #flat, 2 do
  local key = KEYS[2] .. ':' .. redis.sha1hex(ARGV[2] .. flat[i]) -- as _groups.lua does
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local oldest = redis.call('ZRANGE', key, 0, 0)
  local seen = redis.call('HGET', ARGV[1] .. oldest[1], 'first_seen')
  local relapsed = redis.call('SCARD', key .. ':relapsed')
  rows[#rows + 1] = table.concat({'[' .. flat[i], flat[i + 1], relapsed, cjson.encode(newest[1]), newest[2],
    seen and seen ~= '' and seen or newest[2], '"' .. key:sub(-40) .. '"]'}, ',')
end
local repair = redis.call('EXISTS', KEYS[2] .. ':repair')
return {'OK', redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', counts), repair, '[' .. table.concat(rows, ',') .. ']'}
