-- declare_dead: declare one worker dead, for good: this incarnation never comes back. Re-checks the evidence and
-- the monitor's fencing number. Closes the fleet gate when too many have died.
-- KEYS[1] leases        zset
-- KEYS[2] presence      hash
-- KEYS[3] gone          hash
-- KEYS[4] buried        zset
-- KEYS[5] worker        hash
-- KEYS[6] open          hash
-- KEYS[7] incidents     zset
-- KEYS[8] incident      hash
-- KEYS[9] monitor_fence string
-- KEYS[10] deaths       zset
-- KEYS[11] gate         hash
-- KEYS[12] journal      stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] incident
-- ARGV[4] how           gone (its connections) | silent | frozen (connected, and silent)
-- ARGV[5] activation_ms
-- ARGV[6] patience_ms
-- ARGV[7] alive
-- ARGV[8] fence
-- ARGV[9] workers       prefix of the hashes in which workers describe themselves
-- ARGV[10] gate_share   of the fleet that must have died for the gate to close, '' for never
-- ARGV[11] gate_workers that must have died at least
-- ARGV[12] window_ms    within which they died; for as long the gate stays closed
-- ARGV[13] evidence     what is known about the death, as JSON
-- ARGV[14] seen_ms      when it was last seen to be connected, 0 where no monitor looked
-- ARGV[15] ended        prefix of the words of nurseries
-- ARGV[16] earlier      workers that died while they ran what this one was running, from here on
-- RETURNS OK, cause (worker_lost | frozen | eviction), 1 if this closed the gate, nodes that died, of how many
--   | FENCED | ALIVE (or gone already)
-- JOURNALS worker_lost, gate_closed
if redis.call('GET', KEYS[9]) ~= ARGV[8] then return {'FENCED'} end
local worker, now = ARGV[2], now_ms()
local beat = tonumber(redis.call('ZSCORE', KEYS[1], worker) or nil)
if not beat then return {'ALIVE'} end
local processes = connected(ARGV[7], redis.call('HGET', KEYS[2], worker), worker, run_id())
local since = gone_since(KEYS[3], worker, processes, now)
-- It died after its last sign of life; that its connections were gone may have been seen much later.
local died_at, gone_at = beat, beat
if ARGV[4] == 'gone' then
  if not is_gone(since, now, ARGV[6], ARGV[15], worker) then return {'ALIVE'} end
  died_at, gone_at = math.max(tonumber(ARGV[14]), beat), math.max(since, beat)
elseif now - beat < tonumber(ARGV[5]) then
  return {'ALIVE'}
end
local cause = ARGV[4] == 'frozen' and 'frozen' or 'worker_lost'
if redis.call('HGET', KEYS[5], 'stopping') == '1' then cause = 'eviction' end
local told = redis.call('HMGET', KEYS[5], 'queues', 'reconnected', 'release', 'host', 'pid')
redis.call('ZREM', KEYS[1], worker)
redis.call('HDEL', KEYS[2], worker)
redis.call('HDEL', KEYS[3], worker)
redis.call('ZADD', KEYS[4], now, worker)
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - 604800000)
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[6], worker, ARGV[3])
redis.call('ZADD', KEYS[7], now, ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[7], 0, -1001)
redis.call('HSET', KEYS[8], 'incident', ARGV[3], 'worker', worker, 'cause', cause, 'how', ARGV[4],
  'died_at', math.floor(died_at), 'noticed_at', now, 'last_beat', math.floor(beat), 'queues', told[1] or '',
  'reconnected', told[2] or '0', 'release', told[3] or '', 'host', told[4] or '', 'pid', told[5] or '0',
  'evidence', ARGV[13])
redis.call('EXPIRE', KEYS[8], 2592000)
journal(KEYS[12], ARGV[1], {event = 'worker_lost', worker = worker, cause = cause, incident = ARGV[3],
  note = ARGV[4], release = told[3], evidence = ARGV[13]})
if ARGV[10] == '' or cause == 'eviction' then return {'OK', cause, 0, 0, 0} end
local window = tonumber(ARGV[12])
local died, fleet = count_death(KEYS[10], KEYS[1], ARGV[9], worker, gone_at, window, {unpack(ARGV, 16)})
if died < tonumber(ARGV[11]) or died < tonumber(ARGV[10]) * fleet then return {'OK', cause, 0, died, fleet} end
local closed = redis.call('HEXISTS', KEYS[11], 'until') == 0
if closed then redis.call('HSET', KEYS[11], 'closed_at', now) end
redis.call('HSET', KEYS[11], 'until', now + window, 'deaths', died, 'fleet', fleet)
if closed then
  journal(KEYS[12], ARGV[1], {event = 'gate_closed', worker = worker, incident = ARGV[3],
    note = died .. ' of ' .. fleet .. ' workers died'})
end
return {'OK', cause, closed and 1 or 0, died, fleet}
