-- Shared by the scripts that know of the success of a task: what it has published leaves, in its order.
-- keys: tied, outbox_seq, outbox_due, outbox_wake; lanes: prefix of the lanes
local function send_tied(keys, lanes)
  local rows, now = redis.call('LRANGE', keys.tied, 0, -1), now_ms()
  for i = 1, #rows, 2 do
    keys.lane = lanes .. rows[i]
    outbox_put(keys, rows[i], rows[i + 1], now)
  end
  redis.call('DEL', keys.tied)
end
