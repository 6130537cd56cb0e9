-- watch: one look at all workers. Notes whose connections are gone, and returns the workers that are not well.
-- KEYS[1] leases   zset
-- KEYS[2] presence hash
-- KEYS[3] gone     hash
-- ARGV[1] activation_ms
-- ARGV[2] patience_ms  for which all connections must be gone
-- ARGV[3] alive        prefix of the workers' channels
-- ARGV[4] ended        prefix of the words of nurseries
-- RETURNS OK, number of workers whose connections can be counted, now in ms, run id of this server, then
--   worker, how (gone | silent | frozen), ...
-- JOURNALS nothing
local now, run, counted = now_ms(), run_id(), 0
local reply = {'OK', 0, now, run}
local leases = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #leases, 2 do
  local worker, how = leases[i], nil
  local processes = connected(ARGV[3], redis.call('HGET', KEYS[2], worker), worker, run)
  local since = gone_since(KEYS[3], worker, processes, now)
  if processes then counted = counted + 1 end
  if is_gone(since, now, ARGV[2], ARGV[4], worker) then
    how = 'gone'
  elseif now - tonumber(leases[i + 1]) >= tonumber(ARGV[1]) then
    how = processes and processes > 0 and 'frozen' or 'silent'
  end
  if how then
    reply[#reply + 1] = worker
    reply[#reply + 1] = how
  end
end
reply[2] = counted
return reply
