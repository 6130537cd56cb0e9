-- Shared by the scripts that change the block list: what is over goes, and the version rises.
local function tidy_blocks(key, now)
  for field, raw in pairs(hash(key)) do
    local read, rule = pcall(cjson.decode, raw)
    local ends = read and type(rule) == 'table' and tonumber(rule.until_ms)
    if ends and ends > 0 and ends <= now then redis.call('HDEL', key, field) end
  end
end

-- By the clock, so that a version which Redis lost in a failover is not given out twice.
local function raise_version(key, now)
  local version = tonumber((redis.call('HGET', key, 'version') or ''):match('^%d+$') or 0)
  version = math.max(version + 1, now)
  redis.call('HSET', key, 'version', version)
  return version
end

-- Counts a conviction of a fingerprint; blocks it for remember_ms where there were enough. `after` 0: never.
local function convicted_again(keys, maxlen, fingerprint, task, after, remember_ms)
  local count = redis.pcall('INCR', keys.convictions)
  if type(count) ~= 'number' then return end
  redis.call('PEXPIRE', keys.convictions, remember_ms)
  if after == 0 or count < after then return end
  local now, rule = now_ms(), 'fingerprint:' .. fingerprint
  tidy_blocks(keys.blocks, now)
  if redis.call('HEXISTS', keys.blocks, rule) == 1 then return end
  redis.call('HSET', keys.blocks, rule, cjson.encode({task = task, since_ms = now,
    until_ms = now + remember_ms, actor = '', note = '', convictions = count}))
  raise_version(keys.blocks, now)
  journal(keys.journal, maxlen, {event = 'blocked', task = task,
    note = 'fingerprint ' .. fingerprint .. ' after ' .. count .. ' convictions'})
end
