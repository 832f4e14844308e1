-- wrk sends requests that were signed and written beforehand, separated by NUL: args[1] is their file, args[2] is
-- "again" to begin anew after the last one, or "once" to stop there. Prints one line of JSON at the end.

local requests, sent, again = {}, 0, false

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for request in file:read("*a"):gmatch("[^%z]+") do
    requests[#requests + 1] = request
  end
  file:close()
  again = args[2] == "again"
end

function request()
  sent = sent + 1
  if sent > #requests then
    if again then
      sent = 1
    else
      -- What is under way is not counted; wrk takes the time until here.
      wrk.thread:stop()
      sent = #requests
    end
  end
  return requests[sent]
end

function done(summary, latency)
  local errors = summary.errors
  -- wrk counts every answer in requests, and those over 399 in errors.status as well.
  local good = summary.requests - errors.status
  io.write(string.format(
    '\n{"rate": %.1f, "requests": %d, "failed": %d, "p50_ms": %.2f, "p99_ms": %.2f}\n',
    good / (summary.duration / 1e6), summary.requests,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
