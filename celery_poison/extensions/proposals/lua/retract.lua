-- retract: take back all that the pipeline put in force and nobody changed since. It is not proposed again for a while.
-- KEYS[1] published hash
-- KEYS[2] blocks    hash
-- KEYS[3] policy    hash
-- KEYS[4] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] refuse_ms  for which nothing of it is proposed again
-- ARGV[3] actor
-- ARGV[4] note
-- RETURNS OK, rules taken back, 1 if the policy is what it was before (else 0)
-- JOURNALS proposal_taken_back, with unblocked for each rule and policy_changed; nothing if there was nothing
local now, count, policies = now_ms(), 0, 0
local ours = json_field(KEYS[1], 'applied') or {}
local why = ARGV[4] ~= '' and ': ' .. ARGV[4] or ''
local items = {}
for field, rule in pairs(type(ours.fields) == 'table' and ours.fields or {}) do
  -- A person may have blocked it anew meanwhile: that is the person's rule.
  if redis.call('HGET', KEYS[2], field) == rule then
    redis.call('HDEL', KEYS[2], field)
    count = count + 1
    items[count] = field
    journal(KEYS[4], ARGV[1], {event = 'unblocked', task = cjson.decode(rule).task, actor = ARGV[3],
      note = field:gsub(':', ' ', 1) .. ': the pipeline took it back'})
  end
end
if count > 0 then raise_version(KEYS[2], now) end
local policy = type(ours.policy) == 'table' and ours.policy
if policy and redis.call('HGET', KEYS[3], '*') == policy.after then
  set_policies(KEYS[3], '*', policy.before, now)
  policies = 1
  for _, item in ipairs(ours.items) do items[#items + 1] = item end
  journal(KEYS[4], ARGV[1], {event = 'policy_changed', task = '*', actor = ARGV[3],
    note = 'as it was before: the pipeline took it back'})
end
redis.call('HDEL', KEYS[1], 'applied')
if count + policies == 0 then return {'OK', 0, 0} end
refuse_items(KEYS[1], items, now + tonumber(ARGV[2]), now)
journal(KEYS[4], ARGV[1], {event = 'proposal_taken_back', actor = ARGV[3],
  note = count .. ' rules, ' .. policies .. ' policies' .. why})
return {'OK', count, policies}
