-- Shared by every script that moves a message into quarantine or out of it: equal messages there are found and counted
-- without looking at each. A group is a sorted set of mids, by the time of quarantine; one sorted set for each kind
-- of group tells how many are in each.

local function groups_of(message)
  local m = redis.call('HMGET', message, 'task', 'cause', 'queue', 'fingerprint')
  local task, cause = m[1] or '', m[2] or ''
  return {queue = cjson.encode({task, cause, m[3] or ''}), fingerprint = cjson.encode({task, cause, m[4] or ''})}
end

-- Labels are anybody's text, so that keys bear their hash.
local function group_key(groups, kind, labels)
  return groups .. ':' .. redis.sha1hex(kind .. labels)
end

-- An empty group leaves nothing.
local function count_group(groups, kind, labels, key)
  local number = redis.call('ZCARD', key)
  if number > 0 then
    redis.call('ZADD', groups .. ':' .. kind, number, labels)
  else
    redis.call('ZREM', groups .. ':' .. kind, labels)
  end
end

local function leave_group(key, mid)
  redis.call('ZREM', key, mid)
  redis.call('SREM', key .. ':relapsed', mid)
end

-- To be called when the hash of the message is complete, and while it still is: it says where the message belongs.
local function enter_groups(groups, message, mid, quarantined_at)
  local relapsed = tonumber(redis.call('HGET', message, 'releases') or 0) > 0
  for kind, labels in pairs(groups_of(message)) do
    local key = group_key(groups, kind, labels)
    redis.call('ZADD', key, quarantined_at, mid)
    if relapsed then redis.call('SADD', key .. ':relapsed', mid) end
    count_group(groups, kind, labels, key)
  end
end

local function leave_groups(groups, message, mid)
  for kind, labels in pairs(groups_of(message)) do
    local key = group_key(groups, kind, labels)
    leave_group(key, mid)
    count_group(groups, kind, labels, key)
  end
end
