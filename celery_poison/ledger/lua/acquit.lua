-- acquit: a message with a history ended alive. Clears its flag; after its last run, its record too.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] parked     hash
-- KEYS[6] parcels    hash
-- KEYS[7] journal    stream
-- KEYS[8] counts     hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] final      1 when the lineage ends here, 0 when it goes on as a retry
-- ARGV[5] copy       1 when nobody knows whether the broker heard of it: what tells a copy for one stays
-- RETURNS OK, 1 if it was a candidate or a released message
-- JOURNALS cleared (only for a candidate or a released message), duplicate (for a parked copy)
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if ARGV[5] ~= '1' then
  if current and current.token == e.token then redis.call('HDEL', KEYS[1], ARGV[2]) end
  if not current or current.token == e.token then
    end_parking_and_journal(KEYS[5], KEYS[6], KEYS[7], ARGV[1], ARGV[2], 'finished')
  end
  redis.call('HDEL', KEYS[2], e.token)
end
local line = hash(KEYS[3])
if not line.id then return {'OK', 0} end
local cleared = line.candidate == '1' or line.probation == '1'
if cleared then
  count(KEYS[8], 'cleared')
  journal(KEYS[7], ARGV[1], {event = 'cleared', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
    queue = e.queue, worker = e.worker, state = 'DLVD', cause = line.cause, deliveries = e.deliveries,
    crashes = line.crashes, strikes = line.strikes, failures = line.failures, incident = line.incident,
    payload_bytes = e.payload_bytes})
end
redis.call('ZREM', KEYS[4], e.id)
if ARGV[4] == '1' then
  redis.call('DEL', KEYS[3])
else
  redis.call('HSET', KEYS[3], 'candidate', '0', 'probation', '0', 'strikes', '0',
    'proven', '0', 'tried', '0', 'spoilt', '0', 'doubted', '0')
end
return {'OK', cleared and 1 or 0}
