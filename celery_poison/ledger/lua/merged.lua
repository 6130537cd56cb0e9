-- merged: a page of what is in several groups together, newest or oldest first, as one text; changes nothing.
-- KEYS[1] group  zset; one after the other
-- ARGV[1] first  score from which on
-- ARGV[2] last   score up to which
-- ARGV[3] order  newest | oldest
-- ARGV[4] size   about so many: at least one, and all of the last score
-- RETURNS OK, a JSON array of mid, score, ...; an empty object where there are none
-- JOURNALS nothing
local newest = ARGV[3] == 'newest'
local range = newest and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
local function comes_first(a, b) if newest then return a > b else return a < b end end
-- Of the same score as Redis orders them, so that every page does it alike.
local function by_score(a, b) return comes_first(a[1], b[1]) or a[1] == b[1] and comes_first(a[2], b[2]) end
local function page(key, size) return redis.call(range, key, ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', 0, size) end

local heads, size, found = {}, tonumber(ARGV[4]), {}
for _, key in ipairs(KEYS) do
  local head = page(key, 1)
  if head[1] then heads[#heads + 1] = {tonumber(head[2]), key} end
end
table.sort(heads, by_score)
repeat
  -- What comes first is in the sets whose own first come first; from where one of them was not read on, nothing is sure.
  local read = math.min(size, #heads)
  local each, entries = math.max(8, math.ceil(2 * size / math.max(1, read))), {}
  local unsure = heads[read + 1] and heads[read + 1][1]
  for i = 1, read do
    local flat = page(heads[i][2], each)
    for j = 1, #flat, 2 do entries[#entries + 1] = {tonumber(flat[j + 1]), flat[j]} end
    local last = #flat == 2 * each and tonumber(flat[#flat])
    if last and (not unsure or comes_first(last, unsure)) then unsure = last end
  end
  table.sort(entries, by_score)
  for _, row in ipairs(entries) do
    if unsure and not comes_first(row[1], unsure) then break end
    found[#found + 1] = row[2]
    found[#found + 1] = math.max(-1e15, math.min(1e15, row[1])) -- JSON has no infinity
  end
  size = 4 * size
until #found > 0 or #heads == 0
return {'OK', cjson.encode(found)}
