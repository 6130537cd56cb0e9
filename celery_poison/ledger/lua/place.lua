-- place: where, in several sorted sets together, the entry is that so many others precede; changes nothing.
-- KEYS[1] group  zset of whole numbers; one after the other. Or quarantine, or failed
-- ARGV[1] order  newest | oldest
-- ARGV[2] skip   so many others
-- RETURNS OK, its score, how many of the same score precede it | MISSING (there are no more than those)
-- JOURNALS nothing
local newest, skip = ARGV[1] == 'newest', tonumber(ARGV[2])
local low, high = math.huge, -math.huge
for _, key in ipairs(KEYS) do
  local least, most = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES'), redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if least[2] then low, high = math.min(low, least[2]), math.max(high, most[2]) end
end
low, high = math.max(low, 0), math.min(high, 1e15) -- beyond it halving ends nowhere; another client may write that
local function score(steps) return string.format('%.0f', newest and high - steps or low + steps) end
-- How many come no later than that many ms after the first.
local function by(steps)
  local from, to, number = newest and score(steps) or '-inf', newest and '+inf' or score(steps), 0
  for _, key in ipairs(KEYS) do number = number + redis.call('ZCOUNT', key, from, to) end
  return number
end
local first, last = 0, high - low
if last < 0 or by(last) <= skip then return {'MISSING'} end
while first < last do
  local half = math.floor((first + last) / 2)
  if by(half) > skip then last = half else first = half + 1 end
end
return {'OK', score(first), first > 0 and skip - by(first - 1) or skip}
