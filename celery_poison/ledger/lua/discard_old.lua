-- discard_old: TBDL -> FAIL. The oldest message of a full queue makes room; its body stays until it is purged.
-- KEYS[1] running hash
-- KEYS[2] message hash
-- KEYS[3] failed  zset
-- KEYS[4] journal stream
-- KEYS[5] counts  hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] id
-- ARGV[4] task
-- ARGV[5] queue
-- ARGV[6] cause
-- ARGV[7] reason
-- ARGV[8] actor
-- ARGV[9] size    bytes of its body
-- ARGV[10] list   of the broker, from which it is taken in this step; '' where that is not in this database
-- ARGV[11] payload as it lies there
-- ARGV[12] fields field, value, ... of the original message, from here on
-- RETURNS OK | DONE (it is on record as discarded so; the process that did that may have died) | KEPT (it is on record) | HELD (a worker has it by now)
-- JOURNALS discarded
local there = redis.call('HMGET', KEYS[2], 'state', 'resolution', 'unprocessable')
if there[1] then
  if ARGV[10] ~= '' or there[1] ~= 'FAIL' or there[2] ~= 'discarded' or there[3] ~= ARGV[8] then return {'KEPT'} end
  redis.call('HINCRBY', KEYS[2], 'decisions', 1) -- from now on the record is not whose it was: see purge
  return {'DONE'}
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then return {'HELD'} end
if ARGV[10] ~= '' and redis.call('LREM', ARGV[10], -1, ARGV[11]) == 0 then return {'HELD'} end
local now = now_ms()
local m = {id = ARGV[3], task = ARGV[4], queue = ARGV[5], cause = ARGV[6], payload_bytes = ARGV[9]}
-- No task has seen it, so that it is no suspect when a person releases it.
redis.call('HSET', KEYS[2], 'state', 'FAIL', 'id', m.id, 'mid', ARGV[2], 'task', m.task, 'queue', m.queue,
  'cause', m.cause, 'reason', ARGV[7], 'candidate', '0', 'deliveries', 0, 'crashes', 0, 'strikes', 0,
  'failures', 0, 'releases', 0, 'release', 0, 'decisions', 0, 'worker', '', 'incident', '', 'first_seen', now,
  'last_seen', now, 'quarantined_at', now, 'payload_bytes', m.payload_bytes, 'pid', '', 'runtime_ms', '',
  'evidence', '', 'resolution', 'discarded', 'actor', ARGV[8], 'note', ARGV[7], 'unprocessable', ARGV[8])
redis.call('HSET', KEYS[2], unpack(ARGV, 12))
redis.call('ZADD', KEYS[3], now, ARGV[2])
count(KEYS[5], 'discarded', m.cause)
journal(KEYS[4], ARGV[1], {event = 'discarded', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'FAIL', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[8], note = ARGV[7], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
