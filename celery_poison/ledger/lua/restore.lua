-- restore: FAIL -> NDLV. A person takes back that a message was given up; it is in quarantine again, with its history.
-- KEYS[1] message    hash
-- KEYS[2] quarantine zset
-- KEYS[3] failed     zset
-- KEYS[4] journal    stream
-- KEYS[5] outgoing   zset
-- KEYS[6] groups     prefix
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] actor
-- ARGV[4] note
-- ARGV[5] force  1: also what was failed, or edited
-- RETURNS OK | MISSING | ILLEGAL, state (not given up) | CONFLICT, resolution (not merely discarded)
-- JOURNALS restored
local m = hash(KEYS[1])
if not m.state then return {'MISSING'} end
if m.state ~= 'FAIL' then return {'ILLEGAL', m.state} end
if m.resolution ~= 'discarded' and ARGV[5] ~= '1' then return {'CONFLICT', m.resolution or ''} end
local now = now_ms()
redis.call('HDEL', KEYS[1], 'resolution', 'actor', 'note')
-- It waits for a person, wherever it would have gone.
redis.call('HDEL', KEYS[1], 'retry_at', 'releases_left', 'release_pause_ms')
if not m.sent_at then redis.call('HDEL', KEYS[1], 'destination') end
redis.call('ZREM', KEYS[5], ARGV[2])
-- Read models know what is new in quarantine by its time there.
redis.call('HSET', KEYS[1], 'state', 'NDLV', 'quarantined_at', now, 'last_seen', now)
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[2])
enter_groups(KEYS[6], KEYS[1], ARGV[2], now)
journal(KEYS[4], ARGV[1], {event = 'restored', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'NDLV', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[3], note = ARGV[4], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
