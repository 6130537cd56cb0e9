-- dismiss_proposal: a person wants none of what waits. It is not proposed again for a while.
-- KEYS[1] published hash
-- KEYS[2] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] version    of the proposal
-- ARGV[3] refuse_ms  for which nothing of it is proposed again
-- ARGV[4] actor
-- ARGV[5] note
-- RETURNS OK | CONFLICT, why (as of apply_proposal), who did it, or the version that waits or ''
-- JOURNALS proposal_dismissed
local now, version = now_ms(), ARGV[2]
local sheet = json_field(KEYS[1], 'sheet:' .. version)
local closed = proposal_closed(KEYS[1], version, sheet, false, now)
if closed then return closed end
local items = sheet.policy_items
for _, rule in ipairs(sheet.rules) do items[#items + 1] = 'fingerprint:' .. rule.fingerprint end
refuse_items(KEYS[1], items, now + tonumber(ARGV[3]), now)
decide_proposal(KEYS[1], version, 'dismissed', ARGV[4], now)
journal(KEYS[2], ARGV[1], {event = 'proposal_dismissed', actor = ARGV[4],
  note = version .. (ARGV[5] ~= '' and ': ' .. ARGV[5] or '')})
return {'OK'}
