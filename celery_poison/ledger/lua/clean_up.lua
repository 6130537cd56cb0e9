-- clean_up: acknowledged starts leave nothing behind. Tells which starts or ends were not on record.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] journal stream
-- ARGV[1] maxlen
-- ARGV[2] pairs   mid, token, mid, token, ... from here on
-- RETURNS OK, then the number of each pair whose start or end was missing, from 0
-- JOURNALS duplicate (for a parked copy; the end of each start was journalled with it)
local reply, any_parked = {'OK'}, redis.call('HLEN', KEYS[3]) > 0
for i = 2, #ARGV, 2 do
  local raw = redis.call('HGET', KEYS[1], ARGV[i])
  local token = ARGV[i + 1]
  local mine = raw and string.sub(raw, 7, 6 + #token) == token
  if mine then redis.call('HDEL', KEYS[1], ARGV[i]) end
  if any_parked and (mine or not raw) then
    end_parking_and_journal(KEYS[3], KEYS[4], KEYS[5], ARGV[1], ARGV[i], 'finished')
  end
  local ended = redis.call('HDEL', KEYS[2], token) == 1
  if not (mine and ended) then reply[#reply + 1] = (i - 2) / 2 end
end
return reply
