-- Shared by every script that asks which workers live.

-- The part of an incarnation that stays the same when its worker rejoins.
local function life_of(worker)
  return (string.gsub(worker, 'r%d+$', ''))
end

-- The run id of this server, '' where it may not be asked.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end

local function is_clustered()
  local info = redis.pcall('INFO', 'cluster')
  return type(info) == 'string' and string.find(info, 'cluster_enabled:1') ~= nil
end

-- How many are subscribed to each channel: channel, number, ... Or nil where that may not be asked. In a cluster
-- they are subscribed as to a shard's channel, which Redis 6 does not know.
local function subscribers(channels)
  local plain, sharded = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels)), nil
  if plain.err then return nil end
  for i = 2, #plain, 2 do
    if plain[i] == 0 then
      sharded = sharded or redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))
      if sharded.err and string.find(sharded.err, 'NOPERM') and is_clustered() then return nil end
      plain[i] = not sharded.err and sharded[i] or 0
    end
  end
  return plain
end

-- How many processes of a worker are connected, or nil when that cannot be known: it may not subscribe, or it
-- was subscribed at a server that has been restarted since.
local function connected(alive, presence, worker, run)
  if run == '' or presence ~= run then return nil end
  local answer = subscribers({alive .. life_of(worker)})
  return answer and answer[2]
end

-- A whole hash: field -> value.
local function pairs_of(key)
  local flat, found = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

-- The same for all workers that have a lease, by few commands: worker -> its processes, where that can be known.
local function connected_each(alive, presence, leases, run)
  local found, names, channels = {}, {}, {}
  local function count()
    local answer = #names > 0 and subscribers(channels) or {}
    for i, name in ipairs(names) do found[name] = answer[2 * i] end
    names, channels = {}, {}
  end
  for i = 1, #leases, 2 do
    if run ~= '' and presence[leases[i]] == run then
      names[#names + 1] = leases[i]
      channels[#names] = alive .. life_of(leases[i])
    end
    if #names == 1000 then count() end
  end
  count()
  return found
end

-- The time since which none of its processes is connected, or nil while there is one.
local function gone_since(key, worker, processes, now)
  if processes ~= 0 then
    redis.call('HDEL', key, worker)
    return nil
  end
  redis.call('HSETNX', key, worker, now)
  return tonumber(redis.call('HGET', key, worker))
end

-- Whether all processes of a worker are gone for good: for so many ms, or the end of its main process was seen.
local function is_gone(since, now, patience, ended, worker)
  return since and (now - since >= tonumber(patience) or redis.call('EXISTS', ended .. life_of(worker)) == 1)
end

-- Whether the pool process that runs a start holds a lease of its own.
local function child_lives(children, entry)
  return redis.call('EXISTS', children .. life_of(entry.worker) .. '#' .. string.format('%d', entry.pid)) == 1
end

-- Whether a start may not be ended any more: the message has a newer one, or, for a monitor, none that still
-- belongs to the dead worker.
local function is_stale(current, e, fence)
  if fence == '' then return current and current.token ~= e.token end
  return not current or current.token ~= e.token or current.worker ~= e.worker
end

-- Whether a message is in quarantine or given up: then no end of any start counts any more.
local function is_kept(key)
  return redis.call('HEXISTS', key, 'state') == 1
end

-- Whether the monitor that acts has lost its lock meanwhile; '' stands for a worker's own doing.
local function fenced(key, fence)
  return fence ~= '' and redis.call('GET', key) ~= fence
end
