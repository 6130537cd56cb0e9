-- released: NDLV -> TBDL. The stored original was published; the message is on probation from now on,
-- but for one that never reached a task, and one that a hold by value kept from ever beginning: it is
-- suspected of nothing, and no guarded run may ever clear the former.
-- KEYS[1] message    hash
-- KEYS[2] quarantine zset
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] journal    stream
-- KEYS[6] outgoing   zset
-- KEYS[7] groups     prefix
-- KEYS[8] unprocessable string
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] release    number of the release that was published
-- ARGV[4] actor
-- ARGV[5] note
-- ARGV[6] queue      that it was published to; empty: its own
-- RETURNS OK | KEPT (it was completed already) | ILLEGAL, state (given up) | STALE (a newer release exists)
-- JOURNALS released
local m = redis.call('HMGET', KEYS[1], 'state', 'releases', 'id', 'task', 'queue', 'crashes', 'deliveries',
  'first_seen', 'cause', 'worker', 'incident', 'payload_bytes', 'deciding', 'fingerprint', 'release', 'deciding_note',
  'evidence', 'decisions', 'unprocessable', 'retried', 'failures', 'releases_left', 'release_pause_ms', 'actor', 'note', 'strikes',
  'candidate')
if not m[1] then return {'KEPT'} end
if m[1] ~= 'NDLV' then return {'ILLEGAL', m[1]} end
if m[15] ~= ARGV[3] then
  -- It came back to quarantine since, and was not released again.
  local is_back = m[15] == '0' and tonumber(m[18] or 0) >= tonumber(ARGV[3])
  return {is_back and 'KEPT' or 'STALE'}
end
-- A record of an older version may lack a field; the copy is published, so nothing may fail here.
for i = 1, 17 do m[i] = m[i] or '' end
if ARGV[6] ~= '' then m[5] = ARGV[6] end
local counted = redis.call('HGET', KEYS[1], 'counted')
local troubles = tonumber(m[6]) or 0
for _, count in ipairs({m[21], m[26]}) do troubles = troubles + (tonumber(count or 0) or 0) end
local is_held = m[9] == 'held' and troubles == 0 and m[27] ~= '1'
local now, id, suspected = now_ms(), m[3], not m[19] and not is_held
local flag = suspected and '1' or '0'
-- Where no person decided, one more failure is enough: it has had its share of them.
local failures, strikes = m[20] == '1' and math.max(0, tonumber(m[21] or 0) - 1) or 0, 0
-- Where a person wants the counts to go on, what was counted so far is shown, and convicts no more.
local kept = m[20] == '3'
if kept then failures, strikes = tonumber(m[21] or 0), tonumber(m[26] or 0) end
-- The process that meets the copy first completes the release: it knows neither.
local actor, note = ARGV[4], ARGV[5]
if actor == '' then actor, note = m[13], m[16] end
redis.call('HSET', KEYS[3], 'id', id, 'mid', ARGV[2], 'task', m[4], 'queue', m[5], 'crashes', m[6],
  'deliveries', m[7], 'first_seen', m[8], 'cause', m[9], 'worker', m[10], 'incident', m[11],
  'payload_bytes', m[12], 'fingerprint', m[14], 'releases', m[2], 'release', m[15], 'strikes', strikes,
  'failures', failures, 'candidate', flag, 'probation', flag, 'last_seen', now, 'evidence', m[17])
redis.call('HDEL', KEYS[3], 'cut_off', 'cut_off_by')
if kept then redis.call('HSET', KEYS[3], 'old_strikes', strikes, 'old_failures', failures) end
-- Where this was one of several that a person has scheduled, the others are known when it comes back.
local left = m[20] == '2' and tonumber(m[22] or 0) - 1 or 0
if left > 0 then
  redis.call('HSET', KEYS[3], 'releases_left', left, 'release_pause_ms', m[23], 'actor', m[24] or '', 'note', m[25] or '')
end
if suspected then redis.call('ZADD', KEYS[4], now, id) else redis.call('EXPIRE', KEYS[3], 604800) end
leave_groups(KEYS[7], KEYS[1], ARGV[2])
redis.call('DEL', KEYS[1])
uncount(KEYS[8], counted)
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[6], ARGV[2])
journal(KEYS[5], ARGV[1], {event = 'released', id = id, mid = ARGV[2], task = m[4], queue = m[5],
  state = 'TBDL', cause = m[9], deliveries = m[7], crashes = m[6], strikes = strikes, failures = failures,
  actor = actor, note = note, payload_bytes = m[12], fingerprint = m[14]})
return {'OK'}
