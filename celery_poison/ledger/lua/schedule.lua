-- schedule: NDLV -> NDLV. The message goes back to its own queue by itself after a pause, so many times at most;
-- or that is taken back.
-- KEYS[1] message  hash
-- KEYS[2] outgoing zset
-- KEYS[3] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] times    0 takes it back
-- ARGV[4] pause_ms
-- ARGV[5] patience_ms  after which an unfinished decision counts as abandoned
-- ARGV[6] actor
-- ARGV[7] note
-- ARGV[8] journalled     the note of the journal
-- RETURNS OK | MISSING | ILLEGAL, state | BUSY, actor | KEPT (nothing is to be taken back)
-- JOURNALS release_scheduled | release_unscheduled
local m, now = hash(KEYS[1]), now_ms()
if not m.state then return {'MISSING'} end
if m.state ~= 'NDLV' then return {'ILLEGAL', m.state} end
if m.destination then return {'ILLEGAL', 'NDLV, and goes to the queue ' .. m.destination} end
if m.deciding and now - tonumber(m.deciding_at) < tonumber(ARGV[5]) then return {'BUSY', m.deciding} end
local event = 'release_scheduled'
if ARGV[3] == '0' then
  if not m.retry_at then return {'KEPT'} end
  event = 'release_unscheduled'
  redis.call('HDEL', KEYS[1], 'retry_at', 'releases_left', 'release_pause_ms', 'actor', 'note')
  redis.call('ZREM', KEYS[2], ARGV[2])
else
  local at = now + tonumber(ARGV[4])
  redis.call('HSET', KEYS[1], 'retry_at', at, 'releases_left', ARGV[3], 'release_pause_ms', ARGV[4],
    'actor', ARGV[6], 'note', ARGV[7])
  redis.call('ZADD', KEYS[2], at, ARGV[2])
end
redis.call('HSET', KEYS[1], 'last_seen', now)
journal(KEYS[3], ARGV[1], {event = event, id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'NDLV', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[6], note = ARGV[8], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
