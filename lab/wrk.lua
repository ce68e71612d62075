-- Prints wrk's result as one line of JSON, the last of its output.
done = function(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '{"requests":%d,"duration_us":%d,"bytes":%d,"p50_us":%.0f,"p99_us":%.0f,"max_us":%.0f,' ..
            '"connect_errors":%d,"read_errors":%d,"write_errors":%d,"status_errors":%d,"timeouts":%d}\n',
        summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99), latency.max,
        errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
