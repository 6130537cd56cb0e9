-- survived: a start that its worker does not find on record any more ended alive after all. What was held
-- against it is taken back; if the message has a new owner meanwhile, nothing of the new owner's is touched.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] journal    stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] token
-- ARGV[4] id
-- RETURNS OK (also when nothing was held against this start) | STALE (the message runs elsewhere by now)
-- JOURNALS cleared (when it was a candidate for this), stale
local line = hash(KEYS[3])
local current = entry_of(redis.call('HGET', KEYS[1], ARGV[2]))
if line.last_token == ARGV[3] then
  if line.candidate == '1' then
    journal(KEYS[5], ARGV[1], {event = 'cleared', id = ARGV[4], mid = ARGV[2], token = ARGV[3],
      task = line.task, queue = line.queue, worker = line.worker, state = 'DLVD', cause = line.cause,
      deliveries = line.deliveries, crashes = line.crashes, strikes = line.strikes,
      failures = line.failures, incident = line.incident,
      note = 'ended alive after its worker was taken for dead'})
    redis.call('ZREM', KEYS[4], ARGV[4])
  end
  if current then
    -- Another delivery of it is under way, and will close the record when it ends.
    redis.call('HSET', KEYS[3], 'candidate', '0', 'strikes', '0', 'proven', '0')
  else
    redis.call('DEL', KEYS[3])
  end
end
if not current or current[2] == ARGV[3] then return {'OK'} end
redis.call('HDEL', KEYS[2], ARGV[3])
journal(KEYS[5], ARGV[1], {event = 'stale', id = ARGV[4], mid = ARGV[2], token = ARGV[3],
  task = current[9], queue = current[10], worker = line.worker, note = 'ended, but runs elsewhere by now'})
return {'STALE'}
