-- clean_up: acknowledged starts leave nothing behind. Tells which starts or ends were not on record.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] journal stream
-- KEYS[6] tied_lately string
-- KEYS[7] outbox_seq  string
-- KEYS[8] outbox_due  zset
-- KEYS[9] outbox_wake list
-- ARGV[1] maxlen
-- ARGV[2] tied    prefix of what is tied to starts
-- ARGV[3] lanes   prefix of the lanes
-- ARGV[4] pairs   mid, token, mid, token, ... from here on
-- RETURNS OK, then the number of each pair whose start or end was missing, from 0
-- JOURNALS duplicate (for a parked copy; the end of each start was journalled with it)
local reply, any_parked = {'OK'}, redis.call('HLEN', KEYS[3]) > 0
local any_tied = redis.call('EXISTS', KEYS[6]) == 1
for i = 4, #ARGV, 2 do
  local raw = redis.call('HGET', KEYS[1], ARGV[i])
  local token = ARGV[i + 1]
  local mine = raw and string.sub(raw, 7, 6 + #token) == token
  if mine and any_tied then -- its end was lost on the way, and this with it
    send_tied({tied = ARGV[2] .. token, outbox_seq = KEYS[7], outbox_due = KEYS[8], outbox_wake = KEYS[9]},
      ARGV[3])
  end
  if mine then redis.call('HDEL', KEYS[1], ARGV[i]) end
  if any_parked and (mine or not raw) then
    local went_back = mine and start_of(raw).phase == 'B'
    end_parking_and_journal(KEYS[3], KEYS[4], KEYS[5], ARGV[1], ARGV[i], 'finished', went_back)
  end
  local ended = redis.call('HDEL', KEYS[2], token) == 1
  if not (mine and ended) then reply[#reply + 1] = (i - 4) / 2 end
end
return reply
