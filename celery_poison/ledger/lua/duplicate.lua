-- duplicate: a copy of a message that has finished, is in quarantine or was given up; it is not run.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] journal stream
-- KEYS[6] lineage hash
-- KEYS[7] candidates zset
-- KEYS[8] counts  hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start   of the copy
-- ARGV[4] reason
-- RETURNS OK
-- JOURNALS duplicate, cleared (for a flagged message without a strike whose worker ended before it could)
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if current and redis.call('HGET', KEYS[2], current.token) == 'D' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[2], current.token)
  end_parking_and_journal(KEYS[3], KEYS[4], KEYS[5], ARGV[1], ARGV[2], 'finished')
  -- This copy is not acknowledged yet and may come once more, when no other record says that it finished.
  redis.call('HSETNX', KEYS[3], ARGV[2], parking_text('finished', now_ms(), e))
  -- Its worker ended before it could say how it ended: it may have asked for a retry.
  clear_and_journal(KEYS[6], KEYS[7], KEYS[8], KEYS[5], ARGV[1], ARGV[2], current, 'unproven')
end
journal(KEYS[5], ARGV[1], {event = 'duplicate', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, state = 'DLVD', deliveries = e.deliveries, note = ARGV[4]})
return {'OK'}
