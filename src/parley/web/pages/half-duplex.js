import { mountCall } from './call.js';

mountCall('half_duplex');
