-- regroup: some messages in quarantine get into their groups, where a version of before has left that out.
-- KEYS[1] quarantine zset
-- KEYS[2] groups     prefix
-- ARGV[1] messages   prefix of the keys of messages
-- ARGV[2] mids       from here on
-- RETURNS OK
-- JOURNALS nothing
for i = 2, #ARGV do
  local at, message = redis.call('ZSCORE', KEYS[1], ARGV[i]), ARGV[1] .. ARGV[i]
  if at then
    local key = group_key(KEYS[2], 'queue', groups_of(message).queue)
    if not redis.call('ZSCORE', key, ARGV[i]) then enter_groups(KEYS[2], message, ARGV[i], at) end
  end
end
return {'OK'}
