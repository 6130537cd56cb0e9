-- duplicate: a copy of a message that has finished, is in quarantine or was given up; it is not run.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start   of the copy
-- ARGV[4] reason
-- RETURNS OK
-- JOURNALS duplicate
local e = cjson.decode(ARGV[3])
local current = entry_of(redis.call('HGET', KEYS[1], ARGV[2]))
if current and redis.call('HGET', KEYS[2], current[2]) == 'D' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[2], current[2])
  end_parking_and_journal(KEYS[3], KEYS[4], KEYS[5], ARGV[1], ARGV[2], 'finished')
  -- This copy is not acknowledged yet and may come once more, when nothing else tells that it finished.
  redis.call('HSETNX', KEYS[3], ARGV[2], cjson.encode({'finished', now_ms(), e}))
end
journal(KEYS[5], ARGV[1], {event = 'duplicate', id = e[8], mid = ARGV[2], token = e[2], task = e[9],
  queue = e[10], worker = e[3], state = 'DLVD', deliveries = e[6], note = ARGV[4]})
return {'OK'}
