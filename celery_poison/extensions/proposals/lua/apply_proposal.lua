-- apply_proposal: put one proposal of the pipeline in force, exactly as it was read, all of it at once.
-- KEYS[1] published hash
-- KEYS[2] blocks    hash
-- KEYS[3] policy    hash
-- KEYS[4] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] version     of the proposal
-- ARGV[3] rules_only  1 to leave the policy alone, else ''
-- ARGV[4] replaced    1 to apply it although there is a newer one, else ''
-- ARGV[5] actor
-- ARGV[6] note
-- RETURNS OK, rules put in force (one that is there already stays as it is), options of the policy set |
--   CONFLICT, why (unknown | applied | dismissed | over | replaced), who did it, or the version that waits or ''
-- JOURNALS proposal_applied, with blocked for each rule and policy_changed
local now, version, actor = now_ms(), ARGV[2], ARGV[5]
local sheet = json_field(KEYS[1], 'sheet:' .. version)
local closed = proposal_closed(KEYS[1], version, sheet, ARGV[4] == '1', now)
if closed then return closed end
tidy_blocks(KEYS[2], now)
-- What an earlier proposal put in force and nobody changed since still belongs to us: one rollback takes back all.
local ours = json_field(KEYS[1], 'applied') or {}
local fields = {}
for field, raw in pairs(type(ours.fields) == 'table' and ours.fields or {}) do
  if redis.call('HGET', KEYS[2], field) == raw then fields[field] = raw end
end
local count, options = 0, 0
for _, rule in ipairs(sheet.rules) do
  local field = 'fingerprint:' .. rule.fingerprint
  if redis.call('HEXISTS', KEYS[2], field) == 0 then
    local raw = cjson.encode({task = rule.task, since_ms = now, until_ms = now + sheet.lasts_ms, actor = actor,
      note = rule.note, convictions = 0})
    redis.call('HSET', KEYS[2], field, raw)
    fields[field] = raw
    count = count + 1
    journal(KEYS[4], ARGV[1], {event = 'blocked', task = rule.task, actor = actor,
      note = 'fingerprint ' .. rule.fingerprint .. ': ' .. rule.note .. ' (proposal ' .. version .. ')'})
  end
end
if count > 0 then raise_version(KEYS[2], now) end
local policy = ours.policy
if ARGV[3] ~= '1' and next(sheet.policy) then
  local before = redis.call('HGET', KEYS[3], '*') or ''
  local all, told = json_field(KEYS[3], '*') or {}, {}
  for name, value in pairs(sheet.policy) do
    all[name] = value
    told[#told + 1] = name .. '=' .. (value == cjson.null and 'none' or tostring(value))
    options = options + 1
  end
  local after = cjson.encode(all)
  set_policies(KEYS[3], '*', after, now)
  -- As it was before the pipeline touched it, unless a person did since.
  if policy and policy.after == before then before = policy.before end
  policy = {before = before, after = after}
  table.sort(told)
  journal(KEYS[4], ARGV[1], {event = 'policy_changed', task = '*', actor = actor,
    note = 'set ' .. table.concat(told, ' ') .. ': proposal ' .. version})
end
local items = (policy and ours.items) or {}
if options > 0 then items = sheet.policy_items end
redis.call('HSET', KEYS[1], 'applied', cjson.encode({version = version, at_ms = now, fields = fields,
  policy = policy, items = items}))
decide_proposal(KEYS[1], version, 'applied', actor, now)
journal(KEYS[4], ARGV[1], {event = 'proposal_applied', actor = actor,
  note = version .. ': ' .. count .. ' rules, ' .. options .. ' options' .. (ARGV[6] ~= '' and ': ' .. ARGV[6] or '')})
return {'OK', count, options}
