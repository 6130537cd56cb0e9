-- edit: NDLV -> FAIL. A changed copy comes into quarantine in place of the message, whose original stays given up.
-- KEYS[1] message    hash
-- KEYS[2] copy       hash
-- KEYS[3] quarantine zset
-- KEYS[4] failed     zset
-- KEYS[5] journal    stream
-- KEYS[6] groups     prefix
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] copy_mid
-- ARGV[4] actor
-- ARGV[5] note
-- ARGV[6] number  of the decision
-- ARGV[7] fields  field, value, ... of the copy where it differs, from here on
-- RETURNS OK | MISSING | ILLEGAL, state | STALE (another person took the decision over)
-- JOURNALS edited (the original), copied (the copy); each names the other
local m = hash(KEYS[1])
if not m.state then return {'MISSING'} end
if m.edited_to == ARGV[3] and m.state == 'FAIL' then return {'OK'} end -- its answer was lost on the way
if m.state ~= 'NDLV' then return {'ILLEGAL', m.state} end
if m.decisions ~= ARGV[6] then return {'STALE'} end
local now, noted = now_ms(), ARGV[5] ~= '' and ': ' .. ARGV[5] or ''
redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at', 'deciding_note')
-- No person has decided about the copy, no release of it was published, and it does not leave by itself.
redis.call('HSET', KEYS[2], unpack(redis.call('HGETALL', KEYS[1])))
redis.call('HDEL', KEYS[2], 'decisions', 'release', 'edited_to', 'destination', 'retry_at',
  'releases_left', 'release_pause_ms', 'actor', 'note', 'counted')
redis.call('HSET', KEYS[2], 'mid', ARGV[3], 'quarantined_at', now, 'last_seen', now)
redis.call('HSET', KEYS[2], unpack(ARGV, 7))
redis.call('HSET', KEYS[1], 'state', 'FAIL', 'resolution', 'edited', 'actor', ARGV[4], 'note', ARGV[5],
  'edited_to', ARGV[3], 'last_seen', now)
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('ZADD', KEYS[4], now, ARGV[2])
redis.call('ZADD', KEYS[3], now, ARGV[3])
leave_groups(KEYS[6], KEYS[1], ARGV[2])
enter_groups(KEYS[6], KEYS[2], ARGV[3], now)
journal(KEYS[5], ARGV[1], {event = 'edited', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'FAIL', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[4], note = 'to ' .. ARGV[3] .. noted,
  payload_bytes = m.payload_bytes, fingerprint = m.fingerprint, evidence = m.evidence})
local c = hash(KEYS[2])
journal(KEYS[5], ARGV[1], {event = 'copied', id = c.id, mid = ARGV[3], task = c.task, queue = c.queue,
  state = 'NDLV', cause = c.cause, deliveries = c.deliveries, crashes = c.crashes, strikes = c.strikes,
  failures = c.failures, incident = c.incident, actor = ARGV[4], note = 'from ' .. ARGV[2] .. noted,
  payload_bytes = c.payload_bytes, fingerprint = c.fingerprint, evidence = c.evidence})
return {'OK'}
