-- cut_off: adds what a run had taken that was cut off: by day, cause and task, since the ledger began, and by the
-- death of its worker. The history of its message notes what was added, and where: its token, ms, 1 if they are
-- unknown, 1 if they are kept, the sums.
-- KEYS[1] cost hash
local now, e, lineage, begun, goes_back = ...
if not begun then return end
local day, known = math.floor(now / 86400000), type(e.runtime_ms) == 'number'
-- One entry that says nonsense spoils no sum: no run counts for more than a week.
local ms = known and math.min(e.runtime_ms, 604800000) or 0

-- The name of a sum, or that of the rest where `most` have one; sums of fourteen days ago go. Where all have one is
-- written down: a look at all fields for each new name would take long just when many die.
local function name_of(group, word, rest, most)
  local name, full, named = group .. ' ' .. word, 'full ' .. group .. ' ', 0
  if redis.call('HEXISTS', KEYS[1], 'runs ' .. name) == 1 then return name end
  if redis.call('HEXISTS', KEYS[1], full) == 1 then return rest and group .. ' ' .. rest end
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local of = tonumber(string.match(field, '^%a+ (%d+) ') or string.match(field, '^%a+ in (%d+) '))
    if of and of <= day - 14 then redis.call('HDEL', KEYS[1], field) end
    if string.sub(field, 1, #group + 6) == 'runs ' .. group .. ' ' then named = named + 1 end
  end
  if named < most then return name end
  redis.call('HSET', KEYS[1], full, 1)
  return rest and group .. ' ' .. rest
end

local function add(name)
  redis.call('HINCRBY', KEYS[1], 'runs ' .. name, 1)
  if ms > 0 then redis.call('HINCRBY', KEYS[1], 'ms ' .. name, ms) end
  if not known then redis.call('HINCRBY', KEYS[1], 'unknown ' .. name, 1) end
end

local rest = e.cause .. ' '
local word = rest .. clipped(e.task)
add(name_of('all', word, rest, 199))
local sums = {name_of(tostring(day), word, rest, 50)}
sums[2] = (e.incident or '') ~= '' and name_of('in ' .. day, e.incident, nil, 200) or nil
for _, name in ipairs(sums) do
  add(name)
  if not goes_back and ms > 0 then redis.call('HINCRBY', KEYS[1], 'kept ' .. name, ms) end
end
redis.call('HSET', lineage, 'cost', cjson.encode({e.token, ms, known and 0 or 1, goes_back and 0 or 1, sums}))
