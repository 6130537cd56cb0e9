-- settle: acknowledged starts leave nothing behind. Tells which starts or ends were not on record.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- ARGV[1] pairs   mid, token, mid, token, ... from here on
-- RETURNS OK, then the number of each pair whose start or end was missing, from 0
-- JOURNALS nothing (the end of each start is journalled with it)
local reply = {'OK'}
for i = 1, #ARGV, 2 do
  local raw = redis.call('HGET', KEYS[1], ARGV[i])
  local token = ARGV[i + 1]
  local mine = raw and string.sub(raw, 7, 6 + #token) == token
  if mine then redis.call('HDEL', KEYS[1], ARGV[i]) end
  local ended = redis.call('HDEL', KEYS[2], token) == 1
  if not (mine and ended) then reply[#reply + 1] = (i - 1) / 2 end
end
return reply
