-- suspend: one worker stops consuming one queue for a while, if not too many others have.
-- KEYS[1] paused   hash
-- KEYS[2] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] field    endpoint:NODE QUEUE
-- ARGV[3] queue
-- ARGV[4] worker
-- ARGV[5] lasts_ms
-- ARGV[6] most     endpoints of this queue that may be suspended at a time
-- ARGV[7] reason
-- RETURNS OK, version | HELD (as many others are suspended)
-- JOURNALS endpoint_suspended
local now, others = now_ms(), 0
for field, raw in pairs(hash(KEYS[1])) do
  local read, told = pcall(cjson.decode, raw)
  if field:sub(1, 9) == 'endpoint:' and field ~= ARGV[2] and read and type(told) == 'table' then
    if (tonumber(told.until_ms) or 0) <= now then
      redis.call('HDEL', KEYS[1], field)
    elseif field:match('^%S+ (.*)$') == ARGV[3] then
      others = others + 1
    end
  end
end
if others >= tonumber(ARGV[6]) then return {'HELD'} end
redis.call('HSET', KEYS[1], ARGV[2],
  cjson.encode({since_ms = now, until_ms = now + tonumber(ARGV[5]), actor = '', note = ARGV[7]}))
local version = raise_version(KEYS[1], now)
journal(KEYS[2], ARGV[1], {event = 'endpoint_suspended', queue = ARGV[3], worker = ARGV[4], note = ARGV[7]})
return {'OK', version}
