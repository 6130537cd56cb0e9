-- Shared by the scripts that ask whether the fleet gate is closed: so many workers died lately that the
-- death of one more proves little.
local function gate_is_closed(key, now)
  local ends = tonumber(redis.call('HGET', key, 'until') or nil)
  return ends ~= nil and ends > now
end

local function node_of(worker)
  return (string.gsub(worker, '/[^/]*$', ''))
end

-- Counts the death of a worker, once for all that have a message in common: it, and no outsider, may be to
-- blame for them. Returns how many nodes died within the window, and of how many: those that lived before.
local function count_death(deaths, leases, workers, dead, died_at, window, earlier)
  redis.call('ZREMRANGEBYSCORE', deaths, '-inf', '(' .. (died_at - window))
  for _, worker in ipairs(earlier) do redis.call('ZREM', deaths, worker) end
  redis.call('ZADD', deaths, died_at, dead)
  redis.call('PEXPIRE', deaths, window)
  local rows, nodes, died, fleet = redis.call('ZRANGE', deaths, 0, -1, 'WITHSCORES'), {}, 0, 0
  for i = 1, #rows, 2 do
    if not nodes[node_of(rows[i])] then died = died + 1 end
    nodes[node_of(rows[i])] = true
  end
  for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    local since = tonumber(redis.call('HGET', workers .. worker, 'since') or nil) or 0
    if since < tonumber(rows[2]) then nodes[node_of(worker)] = true end
  end
  for _ in pairs(nodes) do fleet = fleet + 1 end
  return died, fleet
end
