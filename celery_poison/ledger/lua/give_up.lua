-- give_up: NDLV -> FAIL. A person failed or discarded the message; its body stays until it is purged.
-- KEYS[1] message    hash
-- KEYS[2] quarantine zset
-- KEYS[3] failed     zset
-- KEYS[4] journal    stream
-- KEYS[5] groups     prefix
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] event      failed | discarded
-- ARGV[4] actor
-- ARGV[5] note
-- ARGV[6] number  of the decision; 0 to decide here and now
-- RETURNS OK | MISSING | ILLEGAL, state | STALE (another person took the decision over)
-- JOURNALS failed | discarded
local m = hash(KEYS[1])
if not m.state then return {'MISSING'} end
if m.state ~= 'NDLV' then return {'ILLEGAL', m.state} end
if ARGV[6] ~= '0' and m.decisions ~= ARGV[6] then return {'STALE'} end
local now = now_ms()
-- First of all, so that a Redis which is full lets the rest through.
redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at', 'deciding_note')
redis.call('HSET', KEYS[1], 'state', 'FAIL', 'resolution', ARGV[3], 'actor', ARGV[4], 'note', ARGV[5],
  'last_seen', now)
redis.call('ZREM', KEYS[2], ARGV[2])
leave_groups(KEYS[5], KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[3], now, ARGV[2])
journal(KEYS[4], ARGV[1], {event = ARGV[3], id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'FAIL', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[4], note = ARGV[5], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
