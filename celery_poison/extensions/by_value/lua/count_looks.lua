-- count_looks: what a worker's holds by value have done since it said so last.
-- KEYS[1] value_looks hash
-- ARGV[1] more    each a name, = and a number
-- RETURNS OK
-- JOURNALS nothing
for i = 1, #ARGV do
  local name, number = ARGV[i]:match('^([a-z_]+)=(%d+)$')
  if name then redis.pcall('HINCRBY', KEYS[1], name, number) end
end
return {'OK'}
