-- Shared by the scripts about what the pipeline publishes (docs/keys.md).
local function json_field(key, name)
  local read, told = pcall(cjson.decode, redis.call('HGET', key, name) or '')
  return read and type(told) == 'table' and told or nil
end

local function decide_proposal(key, version, what, actor, now)
  redis.call('HSET', key, 'fate:' .. version, cjson.encode({what = what, actor = actor, at_ms = now}))
  if redis.call('HGET', key, 'open') == version then redis.call('HDEL', key, 'open') end
end

-- Why nobody can decide about a proposal any more, or nil. A replaced one can be, by who says so.
local function proposal_closed(key, version, sheet, replaced_too, now)
  local open, fate = redis.call('HGET', key, 'open'), json_field(key, 'fate:' .. version)
  local readable = sheet and type(sheet.rules) == 'table' and tonumber(sheet.until_ms)
  if not readable then return {'CONFLICT', 'unknown', open or ''} end
  if fate and fate.what ~= 'replaced' then return {'CONFLICT', fate.what, fate.actor} end
  if sheet.until_ms <= now then return {'CONFLICT', 'over', open or ''} end
  if open ~= version and not replaced_too then return {'CONFLICT', 'replaced', open or ''} end
end

-- What a person said no to is not proposed again for a while.
local function refuse_items(key, items, until_ms, now)
  local refused = json_field(key, 'refused') or {}
  for item, ends in pairs(refused) do
    if (tonumber(ends) or 0) <= now then refused[item] = nil end
  end
  for _, item in ipairs(items) do refused[item] = until_ms end
  redis.call('HSET', key, 'refused', cjson.encode(refused))
end

-- By the clock, so that a version which Redis lost in a failover is never given out twice.
local function set_policies(key, task, options, now)
  local version = tonumber((redis.call('HGET', key, 'version') or ''):match('^%d+$') or 0)
  if options == '' then
    redis.call('HDEL', key, task)
  else
    redis.call('HSET', key, task, options)
  end
  redis.call('HSET', key, 'version', math.max(version + 1, now))
end
