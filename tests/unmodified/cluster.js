// Node's cluster module with two workers: cluster.js SCHEDULING HOST PORT, SCHEDULING rr (the primary accepts and hands each
// connection to a worker) or none (the workers share the listener). Answers each request with its body. SIGUSR2 replaces
// the workers one after the other. A worker that dies is replaced.
const cluster = require('node:cluster');
const http = require('node:http');
const [scheduling, host, port] = process.argv.slice(2);

if (cluster.isPrimary) {
    cluster.schedulingPolicy = scheduling === 'rr' ? cluster.SCHED_RR : cluster.SCHED_NONE;
    const leaving = new Set();
    cluster.on('exit', (worker) => leaving.delete(worker.id) || cluster.fork());
    process.on('SIGUSR2', () => {
        for (const old of Object.values(cluster.workers)) {
            leaving.add(old.id);
            cluster.fork().once('listening', () => old.disconnect());
        }
    });
    process.on('SIGTERM', () => process.exit(0));
    cluster.fork();
    cluster.fork();
} else {
    const server = http.createServer((request, response) => {
        const pieces = [];
        request.on('data', (piece) => pieces.push(piece));
        request.on('end', () => {
            const body = Buffer.concat(pieces);
            response.writeHead(200, { 'Content-Length': body.length });
            response.end(body);
        });
    });
    server.listen(Number(port), host);
}
