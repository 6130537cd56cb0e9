-- purge: a message that was given up is deleted for good; only the journal remembers it.
-- KEYS[1] message    hash
-- KEYS[2] failed     zset
-- KEYS[3] journal    stream
-- KEYS[4] unprocessable string
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] actor
-- ARGV[4] note
-- ARGV[5] number  of the decision that gave it up; '' for whichever
-- RETURNS OK | MISSING | ILLEGAL, state (not given up) | STALE (another person has taken that over)
-- JOURNALS purged
local m = hash(KEYS[1])
if not m.state then return {'MISSING'} end
if m.state ~= 'FAIL' then return {'ILLEGAL', m.state} end
if ARGV[5] ~= '' and m.decisions ~= ARGV[5] then return {'STALE'} end
-- First of all, so that a Redis which is full lets the rest through.
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
uncount(KEYS[4], m.counted)
journal(KEYS[3], ARGV[1], {event = 'purged', id = m.id, mid = ARGV[2], task = m.task, queue = m.queue,
  state = 'FAIL', cause = m.cause, deliveries = m.deliveries, crashes = m.crashes, strikes = m.strikes,
  failures = m.failures, incident = m.incident, actor = ARGV[3], note = ARGV[4], payload_bytes = m.payload_bytes,
  fingerprint = m.fingerprint, evidence = m.evidence})
return {'OK'}
