-- look: everything a worker must know before it lets a redelivered or marked message in. Changes nothing.
-- KEYS[1] running  hash
-- KEYS[2] done     hash
-- KEYS[3] leases   zset
-- KEYS[4] open     hash
-- KEYS[5] lineage  hash
-- KEYS[6] message  hash
-- KEYS[7] parked   hash
-- KEYS[8] gate     hash
-- ARGV[1] mid
-- ARGV[2] activation_ms
-- ARGV[3] children  prefix of the leases of pool processes
-- RETURNS OK, start or '', how it ended or '', owner (none|alive|dead|unknown), lineage fields, state, release,
--   parking or '', run id of this server, 1 while the fleet gate is closed
-- JOURNALS nothing
local raw = redis.call('HGET', KEYS[1], ARGV[1])
local ended, owner = '', 'none'
local entry = start_of(raw)
if entry then
  ended = redis.call('HGET', KEYS[2], entry.token) or ''
  local beat = redis.call('ZSCORE', KEYS[3], entry.worker)
  if beat and now_ms() - tonumber(beat) < tonumber(ARGV[2]) or child_lives(ARGV[3], entry) then
    owner = 'alive'
  else
    owner = (beat or redis.call('HEXISTS', KEYS[4], entry.worker) == 1) and 'dead' or 'unknown'
  end
end
local kept = redis.call('HMGET', KEYS[6], 'state', 'release')
return {'OK', raw or '', ended, owner, redis.call('HGETALL', KEYS[5]), kept[1] or '', kept[2] or '0',
  redis.call('HGET', KEYS[7], ARGV[1]) or '', run_id(), gate_is_closed(KEYS[8], now_ms()) and 1 or 0}
