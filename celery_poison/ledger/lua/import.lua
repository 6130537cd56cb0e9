-- import: a message that another ledger exported comes into quarantine here (NDLV), once.
-- KEYS[1] message    hash
-- KEYS[2] quarantine zset
-- KEYS[3] imported   zset
-- KEYS[4] lineage    hash
-- KEYS[5] running    hash
-- KEYS[6] journal    stream
-- KEYS[7] groups     prefix
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] actor
-- ARGV[4] note
-- ARGV[5] remember_ms  how long it is known what was imported
-- ARGV[6] fields       field, value, ... of the message, from here on
-- RETURNS OK | KEPT (it is here, or was imported before)
-- JOURNALS restored
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - tonumber(ARGV[5]))
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('ZSCORE', KEYS[3], ARGV[2]) then return {'KEPT'} end
-- It was released here and has not ended, or a worker has it in its hands.
if redis.call('HGET', KEYS[4], 'mid') == ARGV[2] or redis.call('HEXISTS', KEYS[5], ARGV[2]) == 1 then return {'KEPT'} end
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('HSET', KEYS[1], unpack(ARGV, 6))
redis.call('HSET', KEYS[1], 'state', 'NDLV', 'mid', ARGV[2], 'release', 0, 'decisions', 0, 'quarantined_at', now, 'last_seen', now)
redis.call('ZADD', KEYS[2], now, ARGV[2])
enter_groups(KEYS[7], KEYS[1], ARGV[2], now)
local m = hash(KEYS[1])
journal(KEYS[6], ARGV[1], {event = 'restored', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'NDLV', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[3], note = ARGV[4], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
