-- watch: one look at all that the active monitor has to do with, by as many commands for a thousand workers as for
-- one. Notes whose connections are gone, and returns the workers that are not well.
-- KEYS[1] leases   zset
-- KEYS[2] presence hash
-- KEYS[3] gone     hash
-- KEYS[4] open     hash
-- KEYS[5] parcels  hash
-- KEYS[6] outgoing zset
-- KEYS[7] gate     hash
-- ARGV[1] activation_ms
-- ARGV[2] patience_ms  for which all connections must be gone
-- ARGV[3] alive        prefix of the workers' channels
-- ARGV[4] ended        prefix of the words of nurseries
-- RETURNS OK, number of workers, and of those whose connections can be counted, now in ms, run id of this server,
--   ms until a worker that is well at this moment can be unwell, 1 if the fleet gate is to be lifted,
--   number of open incidents, of what is parked, ms until something leaves quarantine (-1: nothing does),
--   then { worker, how (gone | silent | frozen), ... }, { channel of a worker that is connected, ... }
-- JOURNALS nothing
local function soon(due, ms) return math.max(0, math.min(due, ms)) end
local now, run, counted, due, unwell = now_ms(), run_id(), 0, tonumber(ARGV[1]), {}
local leases = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local gone, processes, connections = pairs_of(KEYS[3]), connected_each(ARGV[3], pairs_of(KEYS[2]), leases, run), {}
for i = 1, #leases, 2 do
  local worker, silent, how = leases[i], now - tonumber(leases[i + 1]), nil
  local number, since = processes[worker], tonumber(gone[worker])
  if number ~= 0 and gone[worker] then
    redis.call('HDEL', KEYS[3], worker)
  elseif number == 0 and not since then
    redis.call('HSET', KEYS[3], worker, now)
    since = now
  end
  if number then counted = counted + 1 end
  if number == 0 and is_gone(since, now, ARGV[2], ARGV[4], worker) then
    how = 'gone'
  elseif silent >= tonumber(ARGV[1]) then
    how = number and number > 0 and 'frozen' or 'silent'
  else
    due = soon(due, tonumber(ARGV[1]) - silent)
    if number == 0 then due = soon(due, since + tonumber(ARGV[2]) - now) end
  end
  if how then
    unwell[#unwell + 1] = worker
    unwell[#unwell + 1] = how
  end
end
for worker, number in pairs(processes) do
  if number > 0 then connections[#connections + 1] = ARGV[3] .. life_of(worker) end
end
local ends = tonumber(redis.call('HGET', KEYS[7], 'until') or nil)
local first = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
return {'OK', #leases / 2, counted, now, run, math.ceil(due), ends and ends <= now and 1 or 0, redis.call('HLEN', KEYS[4]),
  redis.call('HLEN', KEYS[5]), first[2] and math.max(0, math.ceil(tonumber(first[2]) - now)) or -1, unwell, connections}
