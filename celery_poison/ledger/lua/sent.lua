-- sent: NDLV -> NDLV. The destination has confirmed the message: its body is there alone, its record stays.
-- KEYS[1] message  hash
-- KEYS[2] outgoing zset
-- KEYS[3] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] number   of the copy that was published
-- ARGV[4] actor
-- ARGV[5] canvas   the canvas that waits beside its caller, as JSON, for a later fail; '' where unknown, or kept already
-- RETURNS OK | MISSING (a worker has it by now) | ILLEGAL, state | STALE (another person took the decision over)
-- JOURNALS sent
local m = hash(KEYS[1])
if not m.state then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return {'MISSING'}
end
if m.state ~= 'NDLV' then return {'ILLEGAL', m.state} end
if m.decisions ~= ARGV[3] then return {'STALE'} end
local now = now_ms()
redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at', 'deciding_note', 'body')
redis.call('HSET', KEYS[1], 'sent_at', now, 'last_seen', now)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'canvas', ARGV[5]) end
redis.call('ZREM', KEYS[2], ARGV[2])
journal(KEYS[3], ARGV[1], {event = 'sent', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'NDLV', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[4], note = 'to the queue ' .. m.destination,
  payload_bytes = m.payload_bytes, fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
