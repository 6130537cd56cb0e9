-- publish: what the pipeline found becomes the proposal that waits for a person. Puts nothing in force.
-- KEYS[1] published hash
-- KEYS[2] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] sheet     JSON object, as docs/keys.md says
-- ARGV[3] effect    the same for sheets that would do the same; '' when there is nothing to propose
-- ARGV[4] lasts_ms  how long the proposal, and each of its rules once it is applied, holds
-- ARGV[5] actor
-- ARGV[6] journalled      the note of the journal
-- RETURNS OK, version | KEPT, version (what waits would do the same: only its reasons and its end are new) |
--   DONE, '' (nothing is proposed; what waited does not any more)
-- JOURNALS proposal_made
local now, key, kept = now_ms(), KEYS[1], 10
local open = redis.call('HGET', key, 'open')
if ARGV[3] == '' then
  if open then decide_proposal(key, open, 'replaced', ARGV[5], now) end
  return {'DONE', ''}
end
local waiting = open and json_field(key, 'sheet:' .. open)
local same = waiting and waiting.effect == ARGV[3] and waiting.until_ms > now
local last = redis.call('HGET', key, 'version') or '0'
-- By the clock, so that a version which Redis lost in a failover is never given out twice.
local version = same and open or string.format('%.0f', math.max(tonumber(last:match('^%d+$') or 0) + 1, now))
local head = cjson.encode({effect = ARGV[3], actor = ARGV[5]})
local times = string.format('{"version":%s,"at_ms":%.0f,"until_ms":%.0f,"lasts_ms":%.0f,', version,
  same and waiting.at_ms or now, now + tonumber(ARGV[4]), tonumber(ARGV[4]))
-- Not through cjson, which makes objects of empty lists.
redis.call('HSET', key, 'sheet:' .. version, times .. head:sub(2, -2) .. ',' .. ARGV[2]:sub(2))
if same then return {'KEPT', version} end
if open then decide_proposal(key, open, 'replaced', ARGV[5], now) end
redis.call('HSET', key, 'open', version, 'version', version)
local known = {}
for name in pairs(hash(key)) do
  local number = name:match('^sheet:(%d+)$')
  if number then known[#known + 1] = tonumber(number) end
end
table.sort(known)
for n = 1, #known - kept do
  local old = string.format('%.0f', known[n])
  redis.call('HDEL', key, 'sheet:' .. old, 'fate:' .. old)
end
journal(KEYS[2], ARGV[1], {event = 'proposal_made', actor = ARGV[5], note = version .. ': ' .. ARGV[6]})
return {'OK', version}
