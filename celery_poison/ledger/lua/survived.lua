-- survived: a start that was taken for dead ended alive after all. Its strike is taken back.
-- KEYS[1] running    hash
-- KEYS[2] lineage    hash
-- KEYS[3] candidates zset
-- KEYS[4] journal    stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] token
-- ARGV[4] id
-- RETURNS OK (also when nothing was held against this start)
-- JOURNALS cleared
local line = hash(KEYS[2])
if line.last_token ~= ARGV[3] then return {'OK'} end
journal(KEYS[4], ARGV[1], {event = 'cleared', id = ARGV[4], mid = ARGV[2], token = ARGV[3],
  task = line.task, queue = line.queue, worker = line.worker, state = 'DLVD', cause = line.cause,
  deliveries = line.deliveries, crashes = line.crashes, strikes = line.strikes, failures = line.failures,
  incident = line.incident, note = 'ended alive after its worker was taken for dead'})
redis.call('ZREM', KEYS[3], ARGV[4])
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  -- Another delivery of it is under way, and will close the record when it ends.
  redis.call('HSET', KEYS[2], 'candidate', '0', 'strikes', '0')
else
  redis.call('DEL', KEYS[2])
end
return {'OK'}
